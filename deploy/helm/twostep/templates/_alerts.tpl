{{/* What somebody should look at, and docs/runbook.md says how. Words in double braces below are Prometheus', of an alert. */}}
{{- define "twostep.alerts" -}}
{{- $here := printf "namespace=%q, app_kubernetes_io_instance=%q" .Release.Namespace .Release.Name -}}
- name: TwostepNoProvenPair
  expr: 'max by (pod) (twostep_router_pairs{ {{ $here }}, state="proven"}) == 0'
  for: 2m
  severity: critical
  summary: Router {{ "{{ $labels.pod }}" }} has no prefill and decode node between which bytes have moved.
- name: TwostepRequestsFail
  expr: >-
    sum(rate(twostep_router_requests_total{ {{ $here }}, outcome=~"internal_error|node_unavailable|node_unreachable|node_replaced|node_draining|transfer_.*|checksum_mismatch|engine_fault|request_fault|no_ready_node|deadline_exceeded"}[5m]))
    / sum(rate(twostep_router_requests_total{ {{ $here }}}[5m])) > 0.01
  for: 5m
  severity: critical
  summary: More than one request in a hundred fails through no fault of its client.
- name: TwostepRequestsRefused
  expr: >-
    sum(rate(twostep_router_requests_total{ {{ $here }}, outcome=~"overloaded|queue_full"}[5m]))
    / sum(rate(twostep_router_requests_total{ {{ $here }}}[5m])) > 0.05
  for: 10m
  severity: warning
  summary: More than one request in twenty is refused because there is no room.
- name: TwostepNodeNotReady
  expr: 'min by (address, role) (twostep_router_node_ready{ {{ $here }}}) == 0'
  for: 15m
  severity: warning
  summary: No request may be placed on the {{ "{{ $labels.role }} node {{ $labels.address }}" }}.
- name: TwostepDiscoveryStale
  expr: 'max by (pod) (twostep_router_discovery_stale_seconds{ {{ $here }}}) > 120'
  for: 1m
  severity: warning
  summary: Router {{ "{{ $labels.pod }}" }} cannot find out which nodes there are; it goes on with those it knew.
- name: TwostepWorkerDies
  expr: 'sum by (pod) (increase(twostep_router_starts_total{ {{ $here }}}[15m])) > 0'
  for: 0m
  severity: warning
  summary: A worker of router {{ "{{ $labels.pod }}" }} has died, with the requests that it had, and was started again.
- name: TwostepOrphanedBlocks
  expr: >-
    max by (pod) (twostep_orphaned_blocks{ {{ $here }}}) > 0
    or sum by (pod) (increase(twostep_integrity_violations_total{ {{ $here }}}[1h])) > 0
  for: 1m
  severity: critical
  summary: Node {{ "{{ $labels.pod }}" }} holds KV blocks for nobody, or its accounts do not add up. That is a defect of twostep.
- name: TwostepDigestMismatches
  expr: 'sum by (pod) (increase(twostep_digest_mismatches_total{ {{ $here }}}[15m])) > 0'
  for: 0m
  severity: critical
  summary: KV was spoilt on its way to or in the memory of {{ "{{ $labels.pod }}" }}. It was found and computed anew.
- name: TwostepServesAlone
  expr: >-
    sum(rate(twostep_router_bypass_total{ {{ $here }}}[15m])) / sum(rate(twostep_router_requests_total{ {{ $here }}}[15m])) > 0.05
  for: 15m
  severity: warning
  summary: More than one request in twenty is prefilled by a decode node, which stalls what it decodes.
- name: TwostepKvFull
  expr: 'min by (pod) (min_over_time(twostep_kv_usage_ratio{ {{ $here }}, twostep_dev_role="decode"}[15m])) > 0.95'
  for: 5m
  severity: warning
  summary: The KV cache of decode node {{ "{{ $labels.pod }}" }} has been full for a quarter of an hour.
- name: TwostepQueueLong
  expr: 'min by (pod) (min_over_time(twostep_queue_length{ {{ $here }}}[10m])) > 32'
  for: 5m
  severity: warning
  summary: Requests queue for memory at {{ "{{ $labels.pod }}" }}.
- name: TwostepUnprovenReuse
  expr: 'sum by (pod) (increase(twostep_unproven_reuse_total{ {{ $here }}}[1h])) > 20'
  for: 0m
  severity: warning
  summary: Prefill nodes keep dying, or are cut off, in the middle of writing to {{ "{{ $labels.pod }}" }}.
{{- if include "twostep.scaledPools" . | fromJsonArray }}
- name: TwostepAutoscalerHolds
  expr: 'max(twostep_autoscaler_holding{ {{ $here }}}) == 1'
  for: 10m
  severity: warning
  summary: The autoscaler cannot see or may not act, and changes nothing. Its log and its page /plan say why.
- name: TwostepAutoscalerAway
  expr: 'max(twostep_autoscaler_leading{ {{ $here }}}) == 0 or absent(twostep_autoscaler_leading{ {{ $here }}})'
  for: 5m
  severity: warning
  summary: No autoscaler acts. Pools stay as large as they are.
{{- end }}
{{- $overRdma := list -}}
{{- range include "twostep.pools" . | fromJsonArray }}
{{- if and (eq .role "prefill") .pool.rdma.enabled (not .pool.rdma.allowTcp) }}{{ $overRdma = append $overRdma .name }}{{ end }}
{{- end }}
{{- with $overRdma }}
- name: TwostepRdmaBecameTcp
  expr: 'max by (pod) (twostep_peer_paths{ {{ $here }}, twostep_dev_pool=~"{{ join "|" . }}", path=~".*/tcp"}) > 0'
  for: 2m
  severity: critical
  summary: Prefill node {{ "{{ $labels.pod }}" }} could reach a decode node over TCP only, though RDMA is meant. That pair is not used.
{{- end }}
{{- if gt (int .Values.monitoring.certificateSeconds) 0 }}
- name: TwostepCertificateEnds
  expr: >-
    min by (pod) (twostep_certificate_end_timestamp_seconds{ {{ $here }}} or twostep_router_certificate_end_timestamp_seconds{ {{ $here }}})
    - time() < {{ int64 .Values.monitoring.certificateSeconds }}
  for: 10m
  severity: critical
  summary: A certificate of {{ "{{ $labels.pod }}" }} ends soon, and nobody has renewed it. Without it nothing is served.
{{- end }}
{{- if gt (int .Values.monitoring.minPairBytesPerSecond) 0 }}
- name: TwostepTransferSlow
  expr: 'min by (pod) (twostep_router_slowest_pair_bytes_per_second{ {{ $here }}} > 0) < {{ int64 .Values.monitoring.minPairBytesPerSecond }}'
  for: 10m
  severity: warning
  summary: KV crosses too slowly between two nodes that router {{ "{{ $labels.pod }}" }} knows. Perhaps RDMA has become TCP.
{{- end }}
{{- end -}}
