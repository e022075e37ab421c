// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"maps"
	"strings"
)

// Known are values that the schema does not say, by the paths of fields.
type Known struct {
	// Values of fields whose schema has a rule, or which a driver must be able to use.
	Values map[string]Values
	// Whole are fields whose parts are not tried one by one.
	Whole map[string]Values
	// Keys of maps.
	Keys map[string][]string
	// With has the fields that the rules of an object need beside any other.
	With map[string]map[string]any
	// Exclusive are fields of which at most one of each group may be set.
	Exclusive [][]string
	// Unseen are fields whose value no simulated server shows: those that only guide calls,
	// secrets, and Growing.
	Unseen []string
	// Growing is a field that no change takes back.
	Growing string
	// Masking are objects that keep a server from being ready, whatever else its spec says.
	Masking []string
	// Forbidden is an object that the schema has and a rule does not allow.
	Forbidden string
}

// Values of one field.
type Values struct {
	Valid, Invalid []any
	// Real is how many of the valid values a real engine has room for; zero means all.
	Real int
	// Only replaces the valid values of the schema, and Alone keeps them from rows.
	Only, Alone bool
}

// The Secret that the specs refer to.
const (
	secretName = "specs"
	secretKey  = "data"
	secretText = "hunter2secret"
)

// program is one that the images of real engines have.
const program = "/demo-guest"

// KnownFor returns what is known for a driver, and an image that it has.
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
		"workingDir":                           {Valid: []any{"/tmp", "/", "/a b\"'$(id)/漢", "/" + strings.Repeat("x", 1023)}, Real: 3, Invalid: append([]any{"tmp", "."}, hidden...)},
		"userData.secretKeyRef.name":           {Valid: []any{secretName}},
		"userData.secretKeyRef.key":            {Valid: []any{secretKey}},
		"networkData.secretKeyRef.name":        {Valid: []any{secretName}},
		"networkData.secretKeyRef.key":         {Valid: []any{secretKey}},
	}
	known := Known{
		Values: values,
		Whole:  podFields,
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
		known.Masking = append(known.Masking, "image.kernel") // no text is the path of a kernel
	}
	return known
}

// podFields are the fields of pods that are not tried in rows, with values as a pod may have them. What the API
// server itself checks of a pod is not repeated here.
var podFields = map[string]Values{
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

// set returns a copy of a spec with a field set, and with the fields that have to be beside it.
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

// dropExclusive removes what a field may not stand beside.
func (w *walker) dropExclusive(object map[string]any, path, field string) {
	for _, group := range w.known.Exclusive {
		for _, other := range group {
			if strings.Contains(" "+strings.Join(group, " ")+" ", " "+field+" ") && other != field {
				delete(object, strings.TrimPrefix(other, path+"."))
			}
		}
	}
}
