{{- define "gvList" -}}
<!-- Generated from apis/ by make generate. Do not edit. -->

# API reference
{{ range . }}
All fields of `{{ .GroupVersionString }}`, as `kubectl explain vm` describes them.
[virtualmachines.md](virtualmachines.md) explains how they work together, and
[drivers.md](drivers.md) which of them each driver applies.
{{ template "type" .TypeForKind "VirtualMachine" }}
{{- template "type" index .Types "VirtualMachineSpec" }}
{{- template "type" index .Types "VirtualMachineStatus" }}
{{- range .SortedTypes }}
{{- if not (hasPrefix "VirtualMachine" .Name) }}{{ template "type" . }}{{ end }}
{{- end }}
{{- end }}
{{- end -}}
