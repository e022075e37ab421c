// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"cloudnative.tw/drover/internal/policy"
)

// Replay derives the decision again by this version of Drover. It returns what differs from the
// record, field by field, and nothing if both are equal.
func (r *Record) Replay() (differences []Difference, err error) {
	defer func() {
		if cause := recover(); cause != nil { // an edited file can have what no engine reports
			err = fmt.Errorf("the decision cannot be derived: %v", cause)
		}
	}()
	in := r.Input.policy()
	d := policy.Decide(in)
	derived := newClockBase(in.Now).decision(&d)
	if derived == r.Decision {
		return nil, nil
	}
	return compare(r.Decision, derived)
}

// Difference is a field of a decision that differs.
type Difference struct {
	// Field is the path in the JSON of a decision, such as status.reason.
	Field string `json:"field"`
	// Recorded and Derived are the values, nil if there is none.
	Recorded any `json:"recorded"`
	Derived  any `json:"derived"`
}

func compare(recorded, derived Decision) ([]Difference, error) {
	before, after := map[string]any{}, map[string]any{}
	for _, side := range []struct {
		decision Decision
		fields   map[string]any
	}{{recorded, before}, {derived, after}} {
		text, err := json.Marshal(side.decision)
		var tree map[string]any
		if err == nil {
			err = json.Unmarshal(text, &tree)
		}
		if err != nil {
			return nil, err
		}
		flatten("", tree, side.fields)
	}
	all := maps.Clone(before)
	maps.Copy(all, after)
	var differences []Difference
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if fmt.Sprint(before[field]) != fmt.Sprint(after[field]) {
			differences = append(differences, Difference{field, before[field], after[field]})
		}
	}
	return differences, nil
}

// flatten stores the leaves of a tree by their paths.
func flatten(path string, tree, fields map[string]any) {
	for name, value := range tree {
		if below, is := value.(map[string]any); is {
			flatten(path+name+".", below, fields)
			continue
		}
		fields[path+name] = value
	}
}
