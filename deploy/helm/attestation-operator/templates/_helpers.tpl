{{- define "operator.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "operator.release" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "operator.labels" -}}
{{ include "operator.release" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "operator.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* What cannot work is refused here, before anything is changed. */}}
{{- define "operator.demands" -}}
{{- if not .Values.settings.service_url }}{{ fail "settings.service_url: say under which address the controllers reach the attestation service" }}{{ end }}
{{- if and .Values.controllers.signer (not .Values.configMaps.nodeCA) }}{{ fail "configMaps.nodeCA: name the ConfigMap with the CAs of nodes, or set controllers.signer=false" }}{{ end }}
{{- if not (or .Values.controllers.approver .Values.controllers.signer .Values.controllers.nodes) }}{{ fail "controllers: none is to run" }}{{ end }}
{{- end }}

{{/* Which controllers run, as a list. */}}
{{- define "operator.controllers" -}}
{{- range $name := list "approver" "signer" "nodes" }}{{ if index $.Values.controllers $name }}
- {{ $name }}{{ end }}{{ end }}
{{- end }}
