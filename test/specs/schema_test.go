// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"cloudnative.tw/drover/test/assert"
)

// TestNewField checks that a new field of the CRD is tested automatically, and that a new field whose
// schema does not tell its valid values fails the tests.
func TestNewField(t *testing.T) {
	schema, err := specSchema()
	must(t, err)
	with := func(s apiextensions.JSONSchemaProps) ([]Field, error) {
		changed := schema.DeepCopy()
		changed.Properties["newField"] = s
		return Fields(changed, KnownFor("fake", "x"))
	}
	least, most := 3.0, 9.0
	fields, err := with(apiextensions.JSONSchemaProps{Type: "integer", Minimum: &least, Maximum: &most})
	must(t, err)
	i := slices.IndexFunc(fields, func(f Field) bool { return f.Path == "newField" })
	assert.True(t, i >= 0 && slices.Contains(fields[i].Valid, any(int64(9))) && slices.Contains(fields[i].Invalid, any(int64(10))), "the fields are %+v", fields)
	rule := apiextensions.ValidationRules{{Rule: "self.startsWith('x')"}}
	_, err = with(apiextensions.JSONSchemaProps{Type: "string", XValidations: rule})
	assert.True(t, err != nil && strings.Contains(err.Error(), "spec.newField"), "a field with an unknown rule: %v", err)
}

// TestRows checks that each pair of values is in some row.
func TestRows(t *testing.T) {
	fields := []Field{{Path: "a", Valid: []any{1, 2}}, {Path: "b.x", Valid: []any{1, 2, 3}}, {Path: "b.y", Valid: []any{1}}, {Path: "c", Valid: []any{1, 2}}}
	rows, pairs := Rows(fields, [][]string{{"b.x", "b.y"}})
	met := map[pair]bool{}
	for _, row := range rows {
		assert.True(t, row[1] == absent || row[2] == absent, "%v has two fields that exclude each other", row)
		for a, va := range row {
			for b, vb := range row[:a] {
				met[pair{a, va, b, vb}] = true
			}
		}
	}
	// Of 12 + 6 + 9 + 8 + 12 + 6 pairs, 3 are not possible.
	assert.True(t, len(met) == pairs && pairs == 12+6+9+8+12+6-3 && len(rows) <= 20, "%d of %d pairs are in %d rows", len(met), pairs, len(rows))
}

func must(t *testing.T, err error) {
	t.Helper()
	assert.NoError(t, err)
}
