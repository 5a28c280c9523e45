{{- define "web.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "web.release" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "web.labels" -}}
{{ include "web.release" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "web.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "web.host" -}}
{{ (urlParse .Values.settings.url).hostname }}
{{- end }}

{{/* What cannot work is refused here, before anything is changed. */}}
{{- define "web.demands" -}}
{{- if not .Values.settings.url }}{{ fail "settings.url: say under which address browsers reach the dashboard" }}{{ end }}
{{- if not .Values.settings.service_url }}{{ fail "settings.service_url: say under which address the dashboard reaches the attestation service" }}{{ end }}
{{- if not .Values.settings.oidc_issuer }}{{ fail "settings.oidc_issuer: name the identity provider as its tokens do" }}{{ end }}
{{- if not .Values.clientSecret }}{{ fail "clientSecret: name the Secret with the key client-secret" }}{{ end }}
{{- end }}
