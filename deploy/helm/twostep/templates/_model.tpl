{{/* The model: where it lies inside a pod, what is mounted there, and who fetches it. */}}

{{- define "twostep.isDownloaded" -}}
{{- has .Values.model.source (list "catalogue" "huggingFace") | ternary "yes" "" -}}
{{- end -}}

{{- define "twostep.modelPath" -}}
{{- if eq .Values.model.source "fake" -}}
fake
{{- else if include "twostep.isDownloaded" . -}}
{{ printf "/models/twostep/models/%s" .Values.model.name }}
{{- else -}}
{{ printf "/models/%s" .Values.model.name }}
{{- end -}}
{{- end -}}

{{- define "twostep.modelVolume" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "persistentVolumeClaim" }}
- name: model
  persistentVolumeClaim: {claimName: {{ $model.persistentVolumeClaim.name | quote }}, readOnly: true}
{{- else if eq $model.source "hostPath" }}
- name: model
  hostPath: {path: {{ $model.hostPath.path | quote }}, type: Directory}
{{- else if eq $model.source "image" }}
- name: model
  image: {reference: {{ $model.image.reference | quote }}, pullPolicy: {{ $model.image.pullPolicy }}}
{{- else if and (include "twostep.isDownloaded" .) $model.download.persistentVolumeClaim }}
- name: model
  persistentVolumeClaim: {claimName: {{ $model.download.persistentVolumeClaim | quote }}}
{{- else if include "twostep.isDownloaded" . }}
- name: model
  emptyDir: {sizeLimit: {{ $model.download.sizeLimit }}}
{{- end }}
{{- end -}}

{{- define "twostep.modelMount" -}}
{{- $model := .Values.model -}}
{{- if include "twostep.isDownloaded" . }}
- {name: model, mountPath: /models, readOnly: true}
{{- else if ne $model.source "fake" }}
- name: model
  mountPath: {{ printf "/models/%s" $model.name | quote }}
  readOnly: true
  {{- with get (default dict (get $model $model.source)) "subPath" }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What runs before a program: takes (list root image valuesOfTheProgram). */}}
{{- define "twostep.initContainers" -}}
{{- $root := index . 0 -}}
{{- $more := (index . 2).initContainers -}}
{{- if or $more (include "twostep.isDownloaded" $root) }}
initContainers:
  {{- include "twostep.modelDownload" (list $root (index . 1)) | indent 2 }}
  {{- with $more }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The container that fetches the model: takes (list root image). */}}
{{- define "twostep.modelDownload" -}}
{{- $root := index . 0 -}}
{{- $model := $root.Values.model -}}
{{- if include "twostep.isDownloaded" $root }}
- name: model
  image: {{ include "twostep.image" . | quote }}
  imagePullPolicy: {{ $root.Values.images.pullPolicy }}
  command: [twostep, models, pull]
  {{- if eq $model.source "huggingFace" }}
  args: [{{ printf "hf:%s@%s" $model.huggingFace.repository $model.huggingFace.revision | quote }}, --name, {{ $model.name | quote }}]
  {{- else }}
  args: [{{ $model.name | quote }}]
  {{- end }}
  env: {{- include "twostep.env" (list (include "twostep.downloadEnv" $model) $model.download.env) | nindent 4 }}
  resources: {{- toYaml $model.download.resources | nindent 4 }}
  securityContext: {{- include "twostep.securityContext" (dict) | nindent 4 }}
  volumeMounts:
    - {name: model, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end -}}


{{/* Takes what is said of the model. */}}
{{- define "twostep.downloadEnv" -}}
- {name: HOME, value: /tmp}
- {name: XDG_CACHE_HOME, value: /models}
{{- with .huggingFace.endpoint }}
- {name: HF_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with .huggingFace.tokenSecret.name }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $.huggingFace.tokenSecret.key | quote }}}}
{{- end }}
{{- end -}}
