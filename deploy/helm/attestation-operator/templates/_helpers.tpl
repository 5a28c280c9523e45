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
{{- if not (or .Values.controllers.approver .Values.controllers.signer .Values.controllers.nodes .Values.controllers.runs .Values.controllers.hsm .Values.agent.enabled) }}{{ fail "controllers: none is to run" }}{{ end }}
{{- if and (or .Values.controllers.runs .Values.agent.enabled) (semverCompare "<1.32.0-0" .Capabilities.KubeVersion.Version) }}{{ fail "controllers.runs and agent.enabled: attestation runs need Kubernetes 1.32, whose tokens name the node" }}{{ end }}
{{- if and .Values.controllers.runs (not .Values.runs.clusterID) }}{{ fail "runs.clusterID: say what the attestation service calls this cluster" }}{{ end }}
{{- if .Values.controllers.hsm }}
{{- with .Values.hsm }}
{{- if not (or .modules .tpms) }}{{ fail "hsm.modules and hsm.tpms: say where a token is" }}{{ end }}
{{- range .env }}{{ if hasPrefix "ITL_" .name }}{{ fail (printf "hsm.env: %s is the controller's own" .name) }}{{ end }}{{ end }}
{{- if and .tpms (not .tpmKeys) }}{{ fail "hsm.tpmKeys: say which volume keeps the wrapped keys of the TPM; without them its CA is lost" }}{{ end }}
{{- end }}
{{- end }}
{{- with .Values.admission.webhook }}
{{- if and .enabled (ne (empty .certificateSecret) (empty .caBundle)) }}{{ fail "admission.webhook: certificateSecret and caBundle belong together" }}{{ end }}
{{- end }}
{{- with .Values.agent }}
{{- if and .enabled (eq .deviceAccess "configfs") .backends.tpm }}{{ fail "agent.backends.tpm: a TPM is a character device, which agent.deviceAccess=configfs does not give: plugin or privileged" }}{{ end }}
{{- if and .enabled (eq .deviceAccess "plugin") }}
{{- range $backend, $on := .backends }}{{ if and $on (not (index $.Values.agent.pluginResources $backend)) }}{{ fail (printf "agent.pluginResources.%s: name the resource with which the device plugin gives the device" $backend) }}{{ end }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Which controllers run, as a list. */}}
{{- define "operator.controllers" -}}
{{- range $name := list "approver" "signer" "nodes" "runs" "hsm" }}{{ if index $.Values.controllers $name }}
- {{ $name }}{{ end }}{{ end }}
{{- end }}

{{/* How many replicas a controller has: called with the chart and the controller. */}}
{{- define "operator.replicas" -}}
{{- if eq .name "hsm" }}{{ .chart.Values.hsm.replicaCount }}{{ else }}{{ .chart.Values.replicaCount }}{{ end }}
{{- end }}

{{/* Name and place of each of a list, as the controller is told them: called with the list and the member that is the place. */}}
{{- define "operator.named" -}}
{{- $told := list }}
{{- range .of }}{{ $told = append $told (printf "%s=%s" .name (index . $.member)) }}{{ end }}
{{- join "," $told }}
{{- end }}

{{/* Settings, of those that a program has: called with the chart and the names of settings that it has not. */}}
{{- define "operator.settings" -}}
{{- range $setting, $value := .chart.Values.settings }}
{{- $said := kindIs "float64" $value | ternary (toString (int64 $value)) (toString $value) }}
{{- if and (ne $said "") (not (has $setting $.without)) }}
- {name: ITL_OPERATOR_{{ upper $setting }}, value: {{ $said | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Volume and source of the token for the service: bound to the pod, and for the service alone. */}}
{{- define "operator.token" -}}
- name: token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {audience: itl-attestation, expirationSeconds: {{ .Values.tokenSeconds }}, path: token}
{{- end }}

{{/* Who writes what came of attestation runs, as the API server names it. */}}
{{- define "operator.runsUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "operator.name" . }}-runs
{{- end }}

{{/* The kinds of attestation runs, as a list. */}}
{{- define "operator.runKinds" -}}
- confidentialattestationruns
- confidentialattestationresults
- attestationpolicies
- attestationschedules
- securityevents
- attestationbundles
{{- end }}

{{/* The kinds of CA keys in hardware, as a list. */}}
{{- define "operator.hsmKinds" -}}
- hardwaresecuritymodules
- hsmissuers
- hsmclusterissuers
- quoteattestations
- hsmcertificates
{{- end }}
