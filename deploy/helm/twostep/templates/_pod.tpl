{{/* What all pods of the chart have in common. */}}

{{/* Environment variables: takes (list ownAsYaml given); what is given replaces the chart's own of the same name. */}}
{{- define "twostep.env" -}}
{{- $names := list -}}
{{- range index . 1 }}{{ $names = append $names .name }}{{ end -}}
{{- $env := list -}}
{{- range index . 0 | fromYamlArray -}}
{{- if not (has .name $names) }}{{ $env = append $env . }}{{ end -}}
{{- end -}}
{{- toYaml (concat $env (index . 1)) -}}
{{- end -}}

{{/* Takes what a pool adds or overrides. */}}
{{- define "twostep.podSecurityContext" -}}
{{- $own := dict "runAsNonRoot" true "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001 "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mustMergeOverwrite $own .) -}}
{{- end -}}

{{- define "twostep.securityContext" -}}
{{- $own := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mustMergeOverwrite $own .) -}}
{{- end -}}

{{/* Where a program's certificates are: takes (list root secretName). */}}
{{- define "twostep.tlsConfig" -}}
{{- if ne .Values.tls.internal.mode "plaintext" -}}
certificate: /etc/twostep/tls/tls.crt
key: /etc/twostep/tls/tls.key
ca: /etc/twostep/tls/ca.crt
name: {{ include "twostep.clusterName" . | quote }}
{{- end -}}
{{- end -}}

{{/* The Secret with a program's internal certificate: takes (list root "router"|"node"). */}}
{{- define "twostep.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.tls.internal.mode "secrets" -}}
{{- get $root.Values.tls.internal.secrets (index . 1) -}}
{{- else -}}
{{- include "twostep.objectName" (list $root (printf "%s-internal-tls" (index . 1))) -}}
{{- end -}}
{{- end -}}

{{- define "twostep.frontSecret" -}}
{{- .Values.tls.front.secret | default (include "twostep.objectName" (list . "front-tls")) -}}
{{- end -}}

{{/* Where and beside whom a pod may run: takes a router's or pool's values. */}}
{{- define "twostep.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "twostep.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) | quote }}
  {{- end }}
{{- end }}
{{- end -}}
