{{- define "gpuyard.name" -}}
{{- if contains "gpuyard" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-gpuyard{{ end }}
{{- end }}

{{- define "gpuyard.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "gpuyard.name" .) }}
{{- end }}

{{- define "gpuyard.spoolClaim" -}}
{{- .Values.spool.existingClaim | default (printf "%s-spool" (include "gpuyard.name" .)) }}
{{- end }}

{{/* What selects the servers' pods; it must never change between versions of the chart. */}}
{{- define "gpuyard.selector" -}}
app.kubernetes.io/name: gpuyard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{- define "gpuyard.postgresqlSelector" -}}
app.kubernetes.io/name: gpuyard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: postgresql
{{- end }}

{{/* Whether the servers speak TLS among themselves. */}}
{{- define "gpuyard.tlsInside" -}}
{{- if and .Values.tls.existingSecret .Values.tls.name }}yes{{ end }}
{{- end }}

{{- define "gpuyard.labels" -}}
app.kubernetes.io/name: gpuyard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
