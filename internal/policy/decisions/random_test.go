// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions_test

import (
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/policytest"
)

// pool has the values that a field of a type may have. Values that decide compares with each
// other are few, so that they are often equal.
var pool = map[reflect.Type][]any{}

func offer[T any](values ...T) {
	for _, v := range values {
		pool[reflect.TypeFor[T]()] = append(pool[reflect.TypeFor[T]()], v)
	}
}

func init() {
	offer("", "id-1", "id-2", "run-1", "run-2", "fake", policytest.EngineID, "image", "no: a\ttext\nwith \"all\" \u00e4\u2028\x1b[2J", "Error")
	offer(0, 1, 2, -1, 137)
	offer[int32](0, 1, 2, 3, 12, -1)
	offer[int64](-1, 0, 1, 2, 3, 30)
	offer(false, true)
	offer(api.ActionActive, api.ActionStopped, api.ActionPaused, "")
	offer(api.RestartAlways, api.RestartOnFailure, api.RestartNever, "")
	offer(api.DeletionDelete, api.DeletionRetain, "")
	offer(api.FailureFailed, api.FailureExhausted, api.FailureRefused, api.FailureExited, "")
	offer(api.OperationCreate, api.OperationStart, api.OperationStop, api.OperationPause, api.OperationResume, api.OperationRestart,
		api.OperationUpdate, api.OperationDelete, api.OperationRelease, "", "")
	offer(policy.StatePending, policy.StateStarting, policy.StateRunning, policy.StatePaused, policy.StateStopping, policy.StateStopped,
		policy.StateRestarting, policy.StateRemoving, policy.StateUnknown)
	offer(policy.Unknown, policy.Gone, policy.Present, policy.Present, policy.Present)
	offer(policy.List(""), policy.ListOf("image"), policy.ListOf("a", "", "b: \x1b"))
	offer(types.UID("uid-1"), types.UID("uid-2"))
	t0 := policytest.T0
	offer(time.Time{}, t0, t0.Add(1), t0.Add(-time.Hour), t0.Add(-3*time.Second-time.Nanosecond), t0.Add(time.Minute),
		t0.Add(-time.Second).In(time.FixedZone("east", 3600)), t0.Add(-40*time.Second))
}

// randomInput returns any input of Decide at all, even one that no controller makes.
func randomInput(t *rapid.T) policy.Input {
	var in policy.Input
	of := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
	fill(reflect.ValueOf(&in).Elem(), of)
	return in
}

// fill gives every field a value of its pool.
func fill(v reflect.Value, of func(n int) int) {
	if values := pool[v.Type()]; values != nil {
		v.Set(reflect.ValueOf(values[of(len(values))]))
		return
	}
	if v.Kind() != reflect.Struct {
		panic("there are no values of type " + v.Type().String())
	}
	for _, field := range v.Fields() {
		fill(field, of)
	}
}

// likelyInput returns a random input that is as most are: bound to the engine that answers, and
// seldom deleted or with two servers.
func likelyInput(t *rapid.T) policy.Input {
	in := randomInput(t)
	of := func(n int) bool { return rapid.IntRange(0, n-1).Draw(t, "of") > 0 }
	in.Now = policytest.T0
	if of(3) {
		in.VM.IsDeleted = false
	}
	if of(3) {
		in.Observed.Duplicates = ""
	}
	if of(5) {
		in.Driver, in.Observed.EngineID, in.VM.IsBound = "fake", policytest.EngineID, true
		in.VM.Binding = api.Binding{Driver: "fake", EngineID: policytest.EngineID, UID: in.VM.UID}
	}
	return in
}
