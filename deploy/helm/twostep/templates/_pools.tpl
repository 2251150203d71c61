{{/* All pools, as a JSON list of {role, name, pool}, each with everything that nodeDefaults says. */}}
{{- define "twostep.pools" -}}
{{- $pools := list -}}
{{- range $role, $given := dict "prefill" .Values.prefillPools "decode" .Values.decodePools -}}
{{- range $name, $pool := $given -}}
{{- if not (kindIs "invalid" $pool) -}}
{{- $pools = append $pools (dict "role" $role "name" $name "pool" (mustMergeOverwrite (deepCopy $.Values.nodeDefaults) $pool)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{/* The pools that our autoscaler scales, as twostep.pools has them. */}}
{{- define "twostep.scaledPools" -}}
{{- $scaled := list -}}
{{- range include "twostep.pools" . | fromJsonArray -}}
{{- if eq .pool.autoscaling.kind "twostep" }}{{ $scaled = append $scaled . }}{{ end -}}
{{- end -}}
{{- toJson $scaled -}}
{{- end -}}

{{/* Says "yes" when both pools may be scaled to zero. */}}
{{- define "twostep.maySleep" -}}
{{- $scaled := include "twostep.scaledPools" . | fromJsonArray -}}
{{- if $scaled }}{{ if eq (int (index $scaled 0).pool.autoscaling.minReplicas) 0 }}yes{{ end }}{{ end -}}
{{- end -}}

{{/* The longest that nodes of any pool may take to start, in seconds. */}}
{{- define "twostep.slowestStart" -}}
{{- $longest := 0 -}}
{{- range include "twostep.pools" . | fromJsonArray -}}
{{- $longest = max $longest .pool.startupSeconds -}}
{{- end -}}
{{- $longest -}}
{{- end -}}

{{/* Says "yes" when nodes of any pool are on their machine's network. */}}
{{- define "twostep.hasHostNetwork" -}}
{{- range include "twostep.pools" . | fromJsonArray -}}
{{- if .pool.rdma.hostNetwork }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* What cannot work, in a sentence each. */}}
{{- define "twostep.check" -}}
{{- $pools := include "twostep.pools" . | fromJsonArray -}}
{{- $roles := list -}}
{{- $hasDecodeRdma := false -}}
{{- range $pools -}}
{{- $where := printf "%sPools.%s" .role .name -}}
{{- $roles = append $roles .role -}}
{{- if and (eq .role "decode") .pool.rdma.enabled }}{{ $hasDecodeRdma = true }}{{ end -}}
{{- $pool := .pool -}}
{{- $limits := default dict $pool.resources.limits -}}
{{- if ne (int $pool.tensorParallelism) 1 -}}
{{- fail (printf "%s: tensorParallelism is %v: a node computes on one GPU, and does not split a model; use more replicas" $where $pool.tensorParallelism) -}}
{{- end -}}
{{- if eq (int $pool.ports.grpc) (int $pool.ports.metrics) -}}
{{- fail (printf "%s: ports.grpc and ports.metrics are both %v: a node needs two" $where $pool.ports.grpc) -}}
{{- end -}}
{{- $gpus := get $limits $pool.gpuResource | toString -}}
{{- if and (eq $pool.device "gpu") (has $gpus (list "" "0" "<nil>")) -}}
{{- fail (printf "%s: device is gpu, but resources.limits has no %s: ask for at least one" $where $pool.gpuResource) -}}
{{- end -}}
{{- if and (eq $pool.device "gpu") (gt (int $gpus) 1) -}}
{{- fail (printf "%s: resources.limits asks for %s %s: a node computes on one; use more replicas" $where $gpus $pool.gpuResource) -}}
{{- end -}}
{{- if and (eq $pool.device "cpu") (not (has $gpus (list "" "0" "<nil>"))) -}}
{{- fail (printf "%s: resources.limits asks for %s, but device is cpu: its image cannot use one" $where $pool.gpuResource) -}}
{{- end -}}
{{- if gt (int $pool.autoscaling.minReplicas) (int $pool.autoscaling.maxReplicas) -}}
{{- fail (printf "%s: autoscaling.minReplicas is %v, more than maxReplicas, %v" $where $pool.autoscaling.minReplicas $pool.autoscaling.maxReplicas) -}}
{{- end -}}
{{- if and (has (toString $pool.rollingUpdate.maxSurge) (list "0" "0%")) (has (toString $pool.rollingUpdate.maxUnavailable) (list "0" "0%")) -}}
{{- fail (printf "%s: rollingUpdate: with maxSurge and maxUnavailable both 0 nothing could ever be replaced" $where) -}}
{{- end -}}
{{- if and $pool.rdma.enabled $pool.rdma.ucx.UCX_TLS (not (regexMatch "(^|,)(tcp|all)(,|$)" $pool.rdma.ucx.UCX_TLS)) -}}
{{- fail (printf "%s: rdma.ucx.UCX_TLS is %s: UCX does not start without tcp, add it" $where $pool.rdma.ucx.UCX_TLS) -}}
{{- end -}}
{{- if and (has $pool.autoscaling.kind (list "hpa" "keda")) (eq (int $pool.autoscaling.minReplicas) 0) -}}
{{- fail (printf "%s: autoscaling.minReplicas is 0: only kind twostep wakes a pool again" $where) -}}
{{- end -}}
{{- if and (eq $pool.autoscaling.kind "keda") (not $pool.autoscaling.prometheusAddress) -}}
{{- fail (printf "%s: autoscaling.kind is keda: say where Prometheus is in autoscaling.prometheusAddress" $where) -}}
{{- end -}}
{{- end -}}
{{- range $pools -}}
{{- if and (eq .role "prefill") .pool.rdma.enabled (not .pool.rdma.allowTcp) (not $hasDecodeRdma) -}}
{{- fail (printf "prefillPools.%s: rdma is enabled and no decode pool has it: KV could only cross over TCP; enable it there, or set rdma.allowTcp" .name) -}}
{{- end -}}
{{- end -}}
{{- $scaled := include "twostep.scaledPools" . | fromJsonArray -}}
{{- if $scaled -}}
{{- $scaledRoles := list -}}
{{- $fewest := list -}}
{{- range $scaled }}{{ $scaledRoles = append $scaledRoles .role }}{{ $fewest = append $fewest (int .pool.autoscaling.minReplicas) }}{{ end -}}
{{- if ne (sortAlpha $scaledRoles | join ",") "decode,prefill" -}}
{{- fail (printf "autoscaling.kind is twostep in %d pools (%s): the autoscaler scales one prefill and one decode pool together" (len $scaled) (join ", " $scaledRoles)) -}}
{{- end -}}
{{- if and (has 0 $fewest) (ne (index $fewest 0) (index $fewest 1)) -}}
{{- fail "autoscaling.minReplicas is 0 in one of the pools that are scaled together: they go to zero together, or neither" -}}
{{- end -}}
{{- end -}}
{{- if not (has "decode" $roles) -}}
{{- fail "decodePools: at least one pool is needed: every answer comes from a decode node" -}}
{{- end -}}
{{- if and (not (has "prefill" $roles)) (not .Values.router.config.allow_decode_alone) -}}
{{- fail "prefillPools: at least one pool is needed, or router.config.allow_decode_alone: true" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (include "twostep.hasHostNetwork" .) (not .Values.networkPolicy.hostCidrs) -}}
{{- fail "networkPolicy: a pool has rdma.hostNetwork, and policies know such pods only by their machine's address: give those in networkPolicy.hostCidrs" -}}
{{- end -}}
{{- if eq (int .Values.service.httpPort) (int .Values.service.grpcPort) -}}
{{- fail (printf "service: httpPort and grpcPort are both %v: a Service needs two" .Values.service.httpPort) -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount: create is false: name the one to use in serviceAccount.name" -}}
{{- end -}}
{{- $scaling := .Values.router.autoscaling -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "router: autoscaling.minReplicas is %v, more than maxReplicas, %v" $scaling.minReplicas $scaling.maxReplicas) -}}
{{- end -}}
{{- $needs := dict "huggingFace" .Values.model.huggingFace.repository "persistentVolumeClaim" .Values.model.persistentVolumeClaim.name "hostPath" .Values.model.hostPath.path "image" .Values.model.image.reference -}}
{{- $keys := dict "huggingFace" "repository" "persistentVolumeClaim" "name" "hostPath" "path" "image" "reference" -}}
{{- if and (hasKey $needs .Values.model.source) (not (get $needs .Values.model.source)) -}}
{{- fail (printf "model: source is %s: say which in model.%s.%s" .Values.model.source .Values.model.source (get $keys .Values.model.source)) -}}
{{- end -}}
{{- $internal := .Values.tls.internal -}}
{{- if and (eq $internal.mode "secrets") (not (and $internal.secrets.router $internal.secrets.node)) -}}
{{- fail "tls.internal: mode is secrets: name them in tls.internal.secrets.router and tls.internal.secrets.node (they may be the same)" -}}
{{- end -}}
{{- if and (eq .Values.tls.front.mode "secret") (not .Values.tls.front.secret) -}}
{{- fail "tls.front: mode is secret: name it in tls.front.secret" -}}
{{- end -}}
{{- if and (eq .Values.tls.front.mode "certManager") (not .Values.tls.front.issuerRef.name) -}}
{{- fail "tls.front: mode is certManager: say who signs in tls.front.issuerRef, with name and kind" -}}
{{- end -}}
{{- if and (or .Values.gateway.http .Values.gateway.grpc) (not .Values.gateway.parentRefs) -}}
{{- fail "gateway: say which Gateways to attach to in gateway.parentRefs" -}}
{{- end -}}
{{- /* Only a real API server serves apiregistration.k8s.io: helm template, which knows no cluster, is let through. */ -}}
{{- $apis := .Capabilities.APIVersions -}}
{{- if and (eq .Values.model.source "image") ($apis.Has "apiregistration.k8s.io/v1") (semverCompare "<1.33-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "model: source is image, and image volumes need Kubernetes 1.33 or later: this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (eq $internal.mode "certManager") ($apis.Has "apiregistration.k8s.io/v1") (not ($apis.Has "cert-manager.io/v1")) -}}
{{- fail "tls.internal: mode is certManager, but this cluster has no cert-manager: install it, or use mode secrets with certificates of yours, or mode plaintext where the network is nobody else's" -}}
{{- end -}}
{{- end -}}
