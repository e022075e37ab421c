// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"reflect"
	"strings"
	"time"

	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
)

// Replay derives a decision from its input again, and returns the fields that differ from the
// recorded decision.
func Replay(r *decisions.Record) []Difference {
	derived := decisions.New(r.Input, policy.Decide(r.Input)).Decision
	return compare("", reflect.ValueOf(r.Decision), reflect.ValueOf(derived))
}

// Difference is a field of a decision that differs.
type Difference struct {
	// Field is the path in the JSON of a decision, such as status.reason.
	Field string
	// Recorded and Derived are the values, nil if there is none.
	Recorded, Derived any
}

func compare(path string, recorded, derived reflect.Value) (all []Difference) {
	if recorded.Kind() != reflect.Struct || recorded.Type() == reflect.TypeFor[time.Time]() {
		if recorded.Interface() != derived.Interface() {
			all = append(all, Difference{path, valueOf(recorded), valueOf(derived)})
		}
		return all
	}
	for i := range recorded.NumField() {
		name, _, _ := strings.Cut(recorded.Type().Field(i).Tag.Get("json"), ",")
		all = append(all, compare(strings.TrimPrefix(path+"."+name, "."), recorded.Field(i), derived.Field(i))...)
	}
	return all
}

// valueOf returns a value as it is in JSON, or nil if it is empty.
func valueOf(v reflect.Value) any {
	if v.IsZero() {
		return nil
	}
	switch value := v.Interface().(type) {
	case time.Time:
		return value.Format(time.RFC3339Nano)
	case policy.List:
		return value.Names()
	default:
		return value
	}
}
