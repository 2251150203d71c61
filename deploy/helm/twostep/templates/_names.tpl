{{/* Names and labels. Whatever could be read as a number or a truth value is quoted. */}}

{{/* A release may be called 1 or a.b; the name of a Service has no dots and starts with a letter. */}}
{{- define "twostep.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $release := toString .Release.Name | replace "." "-" -}}
{{- $full := default (contains $name $release | ternary $release (printf "%s-%s" $release $name)) .Values.fullnameOverride -}}
{{- $full = regexMatch "^[a-z]" $full | ternary $full (printf "%s-%s" .Chart.Name $release) -}}
{{- $full | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of one object: takes (list root suffix). At most 63 characters, and different for different suffixes. */}}
{{- define "twostep.objectName" -}}
{{- $full := include "twostep.fullname" (index . 0) -}}
{{- $suffix := index . 1 -}}
{{- $name := printf "%s-%s" $full $suffix -}}
{{- if gt (len $name) 63 -}}
{{- $digest := sha256sum $full | trunc 6 -}}
{{- printf "%s-%s-%s" ($full | trunc (sub 55 (len $suffix) | int) | trimSuffix "-") $digest $suffix -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{- define "twostep.release" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* All labels of an object: takes (list root component). */}}
{{- define "twostep.labels" -}}
{{- $root := index . 0 -}}
{{ include "twostep.release" $root }}
app.kubernetes.io/component: {{ index . 1 | quote }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: twostep
app.kubernetes.io/managed-by: {{ $root.Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
{{- range $key, $value := $root.Values.commonLabels }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "twostep.routerSelector" -}}
{{ include "twostep.release" . }}
app.kubernetes.io/component: router
{{- end -}}

{{- define "twostep.nodeSelector" -}}
{{ include "twostep.release" . }}
app.kubernetes.io/component: node
{{- end -}}

{{- define "twostep.autoscalerSelector" -}}
{{ include "twostep.release" . }}
app.kubernetes.io/component: autoscaler
{{- end -}}

{{/* A selector as the API server is asked with: takes (list root component). */}}
{{- define "twostep.selectorText" -}}
{{- $root := index . 0 -}}
{{- printf "app.kubernetes.io/name=%s,app.kubernetes.io/instance=%s,app.kubernetes.io/component=%s" (default $root.Chart.Name $root.Values.nameOverride) $root.Release.Name (index . 1) -}}
{{- end -}}

{{- define "twostep.testSelector" -}}
{{ include "twostep.release" . }}
app.kubernetes.io/component: test
{{- end -}}

{{/* Takes (list root role poolName). */}}
{{- define "twostep.poolSelector" -}}
{{ include "twostep.nodeSelector" (index . 0) }}
twostep.dev/role: {{ index . 1 | quote }}
twostep.dev/pool: {{ index . 2 | quote }}
{{- end -}}

{{- define "twostep.serviceAccount" -}}
{{- default (include "twostep.objectName" (list . "router")) .Values.serviceAccount.name -}}
{{- end -}}

{{/* The DNS name that every internal certificate carries: it stands for this release, not for a machine. */}}
{{- define "twostep.clusterName" -}}
{{- printf "%s.%s.twostep" (include "twostep.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* Takes (list root image). */}}
{{- define "twostep.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $repository := $root.Values.images.registry | empty | ternary $image.repository (printf "%s/%s" $root.Values.images.registry $image.repository) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (toString (default $root.Chart.AppVersion $image.tag)) -}}
{{- end -}}
{{- end -}}
