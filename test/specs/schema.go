// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/config/crd"
)

// Field is a field of the spec with the values to try.
type Field struct {
	// Path is the field's path below the spec: "image.source", "ports[].port", "resource{cpu}".
	Path string
	// Valid are values that the API accepts, the simplest first. Invalid are values that it must
	// refuse.
	Valid, Invalid []any
	// Alone is set if the values are not combined with those of other fields.
	Alone bool
}

// specSchema returns the schema of the spec in config/crd.
func specSchema() (*apiextensions.JSONSchemaProps, error) {
	var definition apiextensions.CustomResourceDefinition
	if err := yaml.Unmarshal(crd.VirtualMachine, &definition); err != nil {
		return nil, err
	}
	spec := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	return &spec, nil
}

// Fields returns the fields of a schema, in order. It fails if no valid value of a field is known.
func Fields(schema *apiextensions.JSONSchemaProps, k Known) ([]Field, error) {
	w := newWalker(schema, k)
	err := w.walk("", schema)
	return w.fields, err
}

func newWalker(schema *apiextensions.JSONSchemaProps, k Known) *walker {
	return &walker{known: k, root: schema, first: map[string]any{}}
}

type walker struct {
	known  Known
	root   *apiextensions.JSONSchemaProps
	fields []Field
	// first has the simplest value of each field, even of forbidden fields.
	first map[string]any
}

func (w *walker) walk(path string, s *apiextensions.JSONSchemaProps) error {
	if whole, ok := w.known.Whole[path]; ok {
		w.fields = append(w.fields, Field{Path: path, Valid: whole.Valid, Invalid: whole.Invalid, Alone: true})
		w.first[path] = whole.Valid[0]
		return nil
	}
	switch {
	case s.Type == "object" && s.AdditionalProperties != nil:
		return w.walkMap(path, s)
	case s.Type == "object":
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			below := s.Properties[name]
			if err := w.walk(strings.TrimPrefix(path+"."+name, "."), &below); err != nil {
				return err
			}
		}
		if path != "" {
			w.fields = append(w.fields, Field{Path: path, Invalid: []any{"text", []any{}}, Alone: true})
		}
		return nil
	case s.Type == "array":
		return w.walkList(path, s)
	}
	return w.addLeaf(path, s)
}

func (w *walker) walkMap(path string, s *apiextensions.JSONSchemaProps) error {
	keys := w.known.Keys[path]
	if len(keys) == 0 {
		return fmt.Errorf("spec.%s is a map, and known.go lacks keys of it", path)
	}
	for _, key := range keys {
		if err := w.addLeaf(path+"{"+key+"}", s.AdditionalProperties.Schema); err != nil {
			return err
		}
	}
	w.fields = append(w.fields, Field{Path: path, Invalid: []any{"text", map[string]any{"unknown": 1}}, Alone: true})
	return nil
}

// walkList adds the fields of items, and lists of the maximum length, longer ones, and ones with
// a duplicate item.
func (w *walker) walkList(path string, s *apiextensions.JSONSchemaProps) error {
	if err := w.walk(path+"[]", s.Items.Schema); err != nil {
		return err
	}
	f := Field{Path: path, Valid: []any{[]any{}}, Invalid: []any{"text"}, Alone: true}
	if s.MaxItems == nil {
		return fmt.Errorf("spec.%s lacks maxItems", path)
	}
	most, err := w.list(path, *s.MaxItems)
	if err != nil {
		return err
	}
	longer, _ := w.list(path, *s.MaxItems+1)
	f.Valid, f.Invalid = append(f.Valid, most), append(f.Invalid, longer)
	if s.XListType != nil && *s.XListType == "map" {
		f.Invalid = append(f.Invalid, []any{most[0], most[0]})
	}
	w.fields = append(w.fields, f)
	return nil
}

// list returns a list of n items that differ in their keys.
func (w *walker) list(path string, n int64) ([]any, error) {
	var all []any
	for i := range n {
		item, err := w.plain(path + "[]")
		if err != nil {
			return nil, err
		}
		if object, ok := item.(map[string]any); ok {
			object["name"] = fmt.Sprintf("n%d", i)
			if _, ok := object["port"]; ok { // a rule makes it a key
				object["port"] = i + 1
			}
		}
		all = append(all, item)
	}
	return all, nil
}

// plain returns the simplest valid value of a field, with only its required fields.
func (w *walker) plain(path string) (any, error) {
	if value, ok := w.first[path]; ok {
		return value, nil
	}
	s := schemaAt(w.root, path)
	if s == nil || s.Type != "object" {
		return nil, fmt.Errorf("known.go lacks a valid value of spec.%s", path)
	}
	object := maps.Clone(w.known.With[path])
	if object == nil {
		object = map[string]any{}
	}
	for _, name := range s.Required {
		if _, ok := object[name]; ok {
			continue
		}
		value, err := w.plain(path + "." + name)
		if err != nil {
			return nil, err
		}
		object[name] = value
	}
	return object, nil
}

// schemaAt returns the schema of a field, or nil.
func schemaAt(s *apiextensions.JSONSchemaProps, path string) *apiextensions.JSONSchemaProps {
	for _, step := range steps(path) {
		var next apiextensions.JSONSchemaProps
		switch {
		case step == "[]":
			next = *s.Items.Schema
		case s.AdditionalProperties != nil:
			next = *s.AdditionalProperties.Schema
		default:
			found, ok := s.Properties[step]
			if !ok {
				return nil
			}
			next = found
		}
		s = &next
	}
	return s
}

var stepPattern = regexp.MustCompile(`\[\]|[^.\[\]{}]+`)

// steps returns the elements of a path: names, and "[]" for an item.
func steps(path string) []string { return stepPattern.FindAllString(path, -1) }

func (w *walker) addLeaf(path string, s *apiextensions.JSONSchemaProps) error {
	f := Field{Path: path}
	f.Valid, f.Invalid = leafValues(s)
	known, isKnown := w.known.Values[path]
	switch {
	case len(s.XValidations) > 0 || s.XIntOrString || isKnown && known.Only: // a rule that only a person can read
		f.Valid = known.Valid
	case isKnown:
		f.Valid = append(slices.Clone(known.Valid), f.Valid...)
	}
	f.Invalid, f.Alone = append(f.Invalid, known.Invalid...), known.Alone
	if len(f.Valid) > 0 {
		w.first[path] = f.Valid[0]
	}
	if strings.HasPrefix(path, w.known.Forbidden+".") {
		f.Valid, f.Invalid = nil, append(f.Invalid, f.Valid...)
	} else if len(f.Valid) == 0 {
		return fmt.Errorf("no valid value of spec.%s follows from its schema: add one to known.go", path)
	}
	w.fields = append(w.fields, f)
	return nil
}

// leafValues returns the values that follow from type, format, enum and limits.
func leafValues(s *apiextensions.JSONSchemaProps) (valid, invalid []any) {
	switch {
	case len(s.Enum) > 0:
		for _, raw := range s.Enum {
			var value any
			if yaml.Unmarshal(raw.Raw, &value) == nil {
				valid = append(valid, value)
			}
		}
		return valid, []any{"none-of-them", "", 1}
	case s.XIntOrString:
		return nil, []any{"", strings.Repeat("1", 100), true}
	case s.Type == "string" && s.Format == "date-time":
		return []any{"2026-01-31T12:00:00Z", "2026-01-31T12:00:00+01:00", "1970-01-01T00:00:00Z"}, []any{"yesterday", "", 1}
	case s.Type == "string":
		return stringValues(s)
	case s.Type == "integer":
		return integerValues(s)
	case s.Type == "boolean":
		return []any{true, false}, []any{"true", 1}
	}
	return nil, nil
}

// hostile are texts that programs could misinterpret.
var hostile = []any{"a,b=c d", "-x\n--y", `"'\$(id)`, "ü漢😀\u007f"}

func stringValues(s *apiextensions.JSONSchemaProps) (valid, invalid []any) {
	least, most := int64(0), int64(64)
	if s.MinLength != nil {
		least = *s.MinLength
	}
	if s.MaxLength != nil {
		most = *s.MaxLength
		invalid = append(invalid, strings.Repeat("a", int(most)+1))
	}
	lengths := []int64{max(least, 1), most}
	if least == 0 && s.Pattern == "" {
		lengths = append(lengths, 0)
	}
	for _, n := range lengths {
		if text, ok := matching(s.Pattern, int(n), int(most)); ok && !slices.Contains(valid, any(text)) {
			valid = append(valid, text)
		}
	}
	pattern := regexp.MustCompile(s.Pattern)
	for _, text := range hostile {
		switch fits := pattern.MatchString(text.(string)); {
		case fits && len(text.(string)) <= int(most):
			valid = append(valid, text)
		case !fits:
			invalid = append(invalid, text)
		}
	}
	if least > 0 {
		invalid = append(invalid, "")
	}
	return valid, append(invalid, 1)
}

// matching returns a text that matches a pattern and has n characters, or up to most if there is none.
func matching(pattern string, n, most int) (string, bool) {
	expression := regexp.MustCompile(pattern)
	for _, letter := range []string{"a", "0", "A"} {
		if text := strings.Repeat(letter, n); expression.MatchString(text) {
			return text, true
		}
	}
	for seed := range 20 {
		if text := rapid.StringMatching(pattern).Example(seed); len(text) <= most {
			return text, true
		}
	}
	return "", false
}

func integerValues(s *apiextensions.JSONSchemaProps) (valid, invalid []any) {
	least, most := int64(math.MinInt32), int64(math.MaxInt32)
	if s.Minimum != nil {
		least = int64(*s.Minimum)
		invalid = append(invalid, least-1)
	}
	if s.Maximum != nil {
		most = int64(*s.Maximum)
		invalid = append(invalid, most+1)
	}
	return []any{least + (most-least)/2, least, most}, append(invalid, "text", 1.5)
}
