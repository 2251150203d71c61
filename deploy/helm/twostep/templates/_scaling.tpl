{{/* What scales a pool: takes (list root role pool name labels poolName). A prefill pool by who waits, a decode pool by memory taken. */}}
{{- define "twostep.scaling" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $pool := index . 2 -}}
{{- $name := index . 3 -}}
{{- $scaling := $pool.autoscaling -}}
{{- $pods := printf "namespace=%q, app_kubernetes_io_instance=%q, twostep_dev_role=%q, twostep_dev_pool=%q" $root.Release.Namespace $root.Release.Name $role (index . 5) -}}
{{- $target := default (eq $role "prefill" | ternary "4" "0.7") (toString $scaling.target) -}}
{{- if eq $scaling.kind "hpa" }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels: {{- index . 4 | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $name | quote }}}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    {{- if $scaling.metrics }}
    {{- toYaml $scaling.metrics | nindent 4 }}
    {{- else if eq $role "prefill" }}
    - type: Pods
      pods: {metric: {name: twostep_queue_length}, target: {type: AverageValue, averageValue: {{ $target | quote }}}}
    {{- else }}
    - type: Pods
      pods: {metric: {name: twostep_kv_usage_ratio}, target: {type: AverageValue, averageValue: {{ $target | quote }}}}
    {{- end }}
  behavior: {{- toYaml $scaling.behavior | nindent 4 }}
{{- else if eq $scaling.kind "keda" }}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ $name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels: {{- index . 4 | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $name | quote }}}
  minReplicaCount: {{ $scaling.minReplicas }}
  maxReplicaCount: {{ $scaling.maxReplicas }}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior: {{- toYaml $scaling.behavior | nindent 8 }}
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ $scaling.prometheusAddress | quote }}
        threshold: {{ $target | quote }}
        {{- if eq $role "prefill" }}
        query: {{ printf "sum(twostep_queue_length{%s})" $pods | quote }}
        {{- else }}
        query: {{ printf "sum(twostep_kv_blocks{%s, state=\"referenced\"}) / avg(sum by (pod) (twostep_kv_blocks{%s}))" $pods $pods | quote }}
        {{- end }}
{{- end }}
{{- end -}}
