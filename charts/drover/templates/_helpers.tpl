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

{{/*
With --reuse-values Helm takes the defaults of the release's former chart, and so none
for values that are newer: the pods would lose their security context.
*/}}
{{- define "drover.checkValues" -}}
{{- range list "rbac" "pod" "serviceAccount" "streams" "podSecurityContext" "securityContext" }}
{{- if not (hasKey $.Values .) }}
{{- fail (printf "there is no value %s: upgrade with --reset-then-reuse-values instead of --reuse-values, which leaves out the defaults of this chart" .) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "drover.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default "drover-controller" }}
{{- else }}
{{- required "serviceAccount.name is required if serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "drover.subject" -}}
- kind: ServiceAccount
  name: {{ include "drover.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "drover.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "drover.podLabels" -}}
{{- $selector := include "drover.selector" . | fromYaml }}
{{- range $key, $value := .Values.podLabels }}
{{- if hasKey $selector $key }}
{{- fail (printf "podLabels has %s: allowed are labels other than those that the Deployment selects its pods by, %s" $key (keys $selector | sortAlpha | join " and ")) }}
{{- end }}
{{- end }}
{{- merge $selector (.Values.podLabels | default dict) | toYaml }}
{{- end }}

{{- define "drover.podAnnotations" -}}
{{- $default := dict "kubectl.kubernetes.io/default-container" "controller" }}
{{- mergeOverwrite $default (.Values.podAnnotations | default dict) | toYaml }}
{{- end }}

{{- define "drover.volumeMounts" -}}
{{- if .Values.docker.tlsSecret }}
- name: engine-tls
  mountPath: /etc/drover/engine
  readOnly: true
{{- end }}
{{- if .Values.metrics.certSecret }}
- name: metrics-tls
  mountPath: /etc/drover/metrics
  readOnly: true
{{- end }}
{{- if .Values.streams.enabled }}
- name: streams-tls
  mountPath: /etc/drover/streams
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "drover.volumes" -}}
{{- with .Values.docker.tlsSecret }}
- name: engine-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.metrics.certSecret }}
- name: metrics-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- if .Values.streams.enabled }}
- name: streams-tls
  secret:
    secretName: {{ include "drover.streamsSecret" . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
