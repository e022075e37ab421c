{{/*
What streams add to the controller's container.
*/}}
{{- define "drover.streamsArgs" -}}
{{- if .Values.streams.enabled }}
- --streams-address=:9444
- --streams-cert-dir=/etc/drover/streams
- {{ printf "--streams-url=%s" (.Values.streams.url | default (printf "https://drover-streams.%s.svc:%v" .Release.Namespace .Values.streams.service.port)) | quote }}
{{- end }}
{{- end }}

{{- define "drover.streamsSecret" -}}
{{- required "streams.certSecret is required if streams.enabled is true: a Secret with tls.crt, tls.key and ca.crt" .Values.streams.certSecret }}
{{- end }}
