// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"maps"
	"strings"
)

// Known has values that do not follow from the schema, by the paths of fields.
type Known struct {
	// Values has values of fields with a rule in the schema, or with requirements of a driver.
	Values map[string]Values
	// Whole has values of fields whose parts are not tried one by one.
	Whole map[string]Values
	// Keys has the keys of maps.
	Keys map[string][]string
	// With has the fields that an object must always have because of its rules.
	With map[string]map[string]any
	// Exclusive has groups of fields of which at most one may be set.
	Exclusive [][]string
	// Unseen are fields whose values a simulated server does not show: those that only control
	// calls, secrets, and Growing.
	Unseen []string
	// Growing is a field that can only grow.
	Growing string
	// Masking are objects with which a server never becomes ready, whatever the rest of its spec.
	Masking []string
	// Forbidden is an object that the schema has but a rule does not allow.
	Forbidden string
}

// Values are the values of one field.
type Values struct {
	Valid, Invalid []any
	// Real is how many of the valid values are used on a real engine; zero means all.
	Real int
	// Only means that these values replace those from the schema, and Alone that they are not in rows.
	Only, Alone bool
}

// The Secret that the specs refer to.
const (
	secretName = "specs"
	secretKey  = "data"
	secretText = "hunter2secret"
)

// program is a program in the images of real engines.
const program = "/demo-guest"

// KnownFor returns the known values for a driver and an image that it can run.
func KnownFor(driver, image string) Known {
	hidden := []any{"a\x1b[2J", "a\u202eb"} // which a terminal would obey
	source, file := Values{Valid: []any{image}, Invalid: hidden}, Values{Valid: []any{"/boot/file"}, Invalid: hidden}
	digest := "sha256:" + strings.Repeat("0", 64)
	values := map[string]Values{
		"driver":                               {Valid: []any{driver}, Alone: true},
		"resource{cpu}":                        {Valid: []any{1, "10m", "0.5", 4096}, Real: 3, Invalid: []any{"9m", 4097, "x", -1, nil}},
		"resource{memory}":                     {Valid: []any{"32Mi", "48Mi", "6Mi", "64Ti"}, Real: 2, Invalid: []any{"5Mi", "65Ti", "x", 0, nil}},
		"resource{rootDisk}":                   {Valid: []any{"2Mi", "3Mi", "1Mi", "1Pi"}, Real: 2, Invalid: []any{"1Ki", "2Pi", "x", 0}},
		"volumes[].size":                       {Valid: []any{"2Mi", "3Mi", "1Mi", "1Pi"}, Real: 2, Invalid: []any{"1Ki", "2Pi", "x", 0}},
		"volumes[].mountPath":                  {Valid: []any{"/srv", "/srv/a b"}, Real: 2, Invalid: append([]any{"srv", "/", "/srv/", "/a/../b", "/dev/x", "/etc"}, hidden...)},
		"ports[].hostIP":                       {Valid: []any{"127.0.0.1", "", "::1"}, Real: 2, Invalid: []any{"localhost", "1.2.3", "::1%lo"}},
		"image.source":                         source,
		"volumes[].source.image.source":        source,
		"image.kernel.source":                  file,
		"image.kernel.initrd":                  file,
		"volumes[].source.image.kernel.source": file,
		"volumes[].source.image.kernel.initrd": file,
		"image.checksum":                       {Valid: []any{digest}},
		"command[]":                            {Valid: []any{program}, Invalid: []any{"", "a\x00b"}},
		"args[]":                               {Valid: append([]any{"x", ""}, hostile...), Invalid: []any{"a\x00b"}},
		"env[].name":                           {Valid: []any{"NAME", "a b", "\"'\\$(id)-<>!~", strings.Repeat("n", 256)}, Invalid: []any{"a=b", "é", "a\nb", "a\x00b"}},
		"env[].value":                          {Valid: append([]any{"x", ""}, hostile...), Invalid: []any{"a\x00b"}},
		"env[].valueFrom.secretKeyRef.name":    {Valid: []any{secretName}},
		"env[].valueFrom.secretKeyRef.key":     {Valid: []any{secretKey}},
		"workingDir":                           {Valid: []any{"/tmp", "/", "/a b\"'$(id)/漢", strings.Repeat("/"+strings.Repeat("x", 255), 4)}, Real: 3, Invalid: append([]any{"tmp", ".", "/" + strings.Repeat("x", 256)}, hidden...)},
		"user":                                 {Valid: []any{"0", "1234:5", "root", strings.Repeat("u", 256)}, Real: 2, Invalid: append([]any{"a b", ":", "a:", "a:b:c"}, hidden...)},
		"sysctls[].name":                       {Valid: []any{"net.ipv4.ip_default_ttl", "net/ipv4/ip_forward"}, Invalid: append([]any{"Net", "a..b", "../a", ".a", "a.", strings.Repeat("a", 254)}, hidden...)},
		"sysctls[].value":                      {Valid: []any{"1", "2"}, Invalid: append([]any{"1\n2"}, hidden...)},
		"userData.secretKeyRef.name":           {Valid: []any{secretName}},
		"userData.secretKeyRef.key":            {Valid: []any{secretKey}},
		"networkData.secretKeyRef.name":        {Valid: []any{secretName}},
		"networkData.secretKeyRef.key":         {Valid: []any{secretKey}},
	}
	known := Known{
		Values: values,
		Whole:  wholeFields,
		Keys:   map[string][]string{"resource": {"cpu", "memory", "rootDisk"}},
		With: map[string]map[string]any{
			"image": {"source": image}, "volumes[].source.image": {"source": image},
		},
		Exclusive: [][]string{{"env[].value", "env[].valueFrom"}, {"userData.inline", "userData.secretKeyRef"}, {"networkData.inline", "networkData.secretKeyRef"}},
		Masking:   []string{"readinessProbe"},
		Unseen: []string{
			"shutdownGracePeriodSeconds", "resource{rootDisk}", "userData", "networkData",
			"env[].valueFrom.secretKeyRef.name", "env[].valueFrom.secretKeyRef.key", "env[].valueFrom.secretKeyRef.optional",
		},
		Growing:   "resource{rootDisk}",
		Forbidden: "volumes[].source.image.kernel",
	}
	if driver == "qemu" {
		known.Masking = append(known.Masking, "image.kernel") // no kernel has a path from the schema
	}
	return known
}

// wholeFields are fields of pods, with valid values. They are not tried in rows, because the API server itself, or package
// crd, checks their parts.
var wholeFields = map[string]Values{
	"files": {Valid: []any{
		[]any{map[string]any{"mountPath": "/srv/secret", "secret": map[string]any{"secretName": secretName, "defaultMode": 0o400}}},
		[]any{map[string]any{"mountPath": "/srv/a b", "configMap": map[string]any{"name": "none", "optional": true, "items": []any{
			map[string]any{"key": "k", "path": "a/b c", "mode": 0o777},
		}}}},
	}, Invalid: []any{"text", []any{map[string]any{"mountPath": "/srv"}}, []any{map[string]any{"mountPath": "/srv", "secret": map[string]any{"secretName": ""}}}}},
	"ephemeral":        {Valid: []any{false, true}, Invalid: []any{"yes", 1}},
	"storageClassName": {Valid: []any{"fast"}, Invalid: []any{1, "-"}},
	"evictionPolicy":   {Valid: []any{"Allow", "Block"}, Invalid: []any{"", "Never"}},
	"nodeSelector":     {Valid: []any{map[string]any{"disk": "fast"}}, Invalid: []any{"text", map[string]any{"disk": 1}}},
	"affinity": {Valid: []any{map[string]any{"podAntiAffinity": map[string]any{
		"requiredDuringSchedulingIgnoredDuringExecution": []any{map[string]any{"topologyKey": "kubernetes.io/hostname"}},
	}}}, Invalid: []any{"text"}},
	"tolerations":               {Valid: []any{[]any{map[string]any{"operator": "Exists"}}}, Invalid: []any{"text"}},
	"topologySpreadConstraints": {Valid: []any{[]any{map[string]any{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}}}, Invalid: []any{"text"}},
	"priorityClassName":         {Valid: []any{"high"}, Invalid: []any{1, "-"}},
	"runtimeClassName":          {Valid: []any{"kata"}, Invalid: []any{1, "-"}},
}

// set returns a copy of a spec with a field and the fields that it requires.
func (w *walker) set(spec map[string]any, path string, value any) (map[string]any, error) {
	out, err := w.setAt(spec, "", steps(path), value)
	if err != nil {
		return nil, err
	}
	return out.(map[string]any), nil
}

func (w *walker) setAt(node any, path string, rest []string, value any) (any, error) {
	if len(rest) == 0 {
		return value, nil
	}
	if rest[0] == "[]" {
		list, _ := node.([]any)
		var item any
		if len(list) > 0 {
			item = list[0]
		}
		changed, err := w.setAt(item, path+"[]", rest[1:], value)
		return []any{changed}, err
	}
	object, _ := node.(map[string]any)
	if object == nil {
		made, err := w.plain(path)
		if err != nil {
			return nil, err
		}
		object, _ = made.(map[string]any)
	}
	object = maps.Clone(object)
	below := strings.TrimPrefix(path+"."+rest[0], ".")
	if _, isMap := w.known.Keys[path]; isMap {
		below = path + "{" + rest[0] + "}"
	}
	w.dropExclusive(object, path, below)
	changed, err := w.setAt(object[rest[0]], below, rest[1:], value)
	object[rest[0]] = changed
	return object, err
}

// dropExclusive removes the fields that may not be set together with a field.
func (w *walker) dropExclusive(object map[string]any, path, field string) {
	for _, group := range w.known.Exclusive {
		for _, other := range group {
			if strings.Contains(" "+strings.Join(group, " ")+" ", " "+field+" ") && other != field {
				delete(object, strings.TrimPrefix(other, path+"."))
			}
		}
	}
}
