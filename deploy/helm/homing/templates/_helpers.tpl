{{- define "homing.labels" -}}
app.kubernetes.io/name: homing
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "homing.selector" -}}
app.kubernetes.io/name: homing
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "homing.config" -}}
{{- $drain := dict "delay" (printf "%ds" (int .Values.drain.delay)) "grace" (printf "%ds" (int .Values.drain.grace)) -}}
{{- $own := dict "drain" $drain "log" (dict "format" "json") "workers" (int .Values.workers) -}}
{{- if eq .Values.mode "extproc" -}}
{{- $_ := set $own "kubernetes" (dict "pool" .Values.pool.name) -}}
{{- else -}}
{{- $_ := set $own "kubernetes" (dict "selector" .Values.modelServers.labels "ports" .Values.modelServers.ports) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.config)) -}}
{{- end }}
