{{/*
Names are fixed, whatever the release is called: a cluster has one Drover, and
Helm refuses a second release that would make the same ClusterRoles.
*/}}
{{- define "drover.selector" -}}
app.kubernetes.io/name: drover
app.kubernetes.io/component: controller
{{- end }}

{{- define "drover.labels" -}}
app.kubernetes.io/name: drover
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "drover.subject" -}}
- kind: ServiceAccount
  name: drover-controller
  namespace: {{ .Release.Namespace }}
{{- end }}
