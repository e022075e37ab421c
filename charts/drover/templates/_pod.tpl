{{/*
Not empty if VMs run as pods.
*/}}
{{- define "drover.hasPodDriver" -}}
{{- if has "pod" (splitList "," (nospace .Values.vmDriver)) }}yes{{ end }}
{{- end }}

{{/*
What driver pod adds to the controller's container.
*/}}
{{- define "drover.podArgs" -}}
{{- if include "drover.hasPodDriver" . }}
{{- if semverCompare "<1.33.0-0" .Capabilities.KubeVersion.Version }}
{{- fail (printf "vmDriver has pod, which needs Kubernetes 1.33 or newer, with image volumes: this is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
- {{ .Values.pod.machineImage | default (printf "drover-machine:%s" .Chart.AppVersion) | printf "--pod-machine-image=%s" | quote }}
- --pod-access-mode={{ .Values.pod.accessMode }}
- --pod-kvm={{ .Values.pod.kvm }}
- {{ printf "--pod-kvm-resource=%s" .Values.pod.kvmResource | quote }}
{{- if .Values.pod.streams }}
{{- if not .Values.streams.enabled }}
{{- fail "pod.streams is true, which needs streams.enabled: that is where they are served" }}
{{- end }}
- --pod-streams=true
{{- end }}
{{- if .Values.pod.assertions }}
- --pod-assertions=true
{{- end }}
{{- with .Values.pod.image }}
- {{ printf "--pod-image=%s" . | quote }}
{{- end }}
{{- end }}
{{- end }}
