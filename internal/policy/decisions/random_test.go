// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
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
	offer[uint64](0, 7)
	offer[uint8](0, 'x')
	offer(0.0, 1.5)
	offer(false, true)
	offer(api.ActionActive, api.ActionStopped, api.ActionPaused, "")
	offer(api.RestartAlways, api.RestartOnFailure, api.RestartNever, "")
	offer(api.DeletionDelete, api.DeletionRetain, "")
	offer(api.FailureFailed, api.FailureExhausted, api.FailureRefused, api.FailureExited, "")
	offer(api.OperationCreate, api.OperationStart, api.OperationStop, api.OperationPause, api.OperationResume, api.OperationRestart,
		api.OperationUpdate, api.OperationDelete, api.OperationRelease, "")
	offer(driver.StatePending, driver.StateStarting, driver.StateRunning, driver.StatePaused, driver.StateStopping, driver.StateStopped,
		driver.StateRestarting, driver.StateRemoving)
	offer(inventory.Unknown, inventory.Gone, inventory.Present, inventory.Present)
	offer(metav1.ConditionTrue, metav1.ConditionFalse)
	offer(policy.StepNone, policy.StepEnsure, policy.StepDelete, policy.StepFinish)
	offer(types.UID("uid-1"), types.UID("uid-2"))
	offer(resource.MustParse("2"), resource.MustParse("500m"), resource.MustParse("4G"), resource.MustParse("0.0005"), resource.MustParse("3Gi"), resource.Quantity{})
	t0 := policytest.T0
	offer(time.Time{}, t0, t0.Add(1), t0.Add(-time.Hour), t0.Add(-3*time.Second-time.Nanosecond), t0.Add(time.Minute),
		t0.Add(-time.Second).In(time.FixedZone("east", 3600)), t0.Add(-40*time.Second))
	offer[error](nil, errors.New("plain"), driver.Errorf(driver.ErrUnavailable, "no answer"),
		driver.WithReason(api.ReasonPortConflict, driver.Errorf(driver.ErrRetry, "port 80: %w", driver.ErrExhausted)))
}

// source returns a number below n.
type source func(n int) int

// randomInput returns an input of Decide: what is recorded comes from rapid, which can shrink it,
// and everything else from a seed.
func randomInput(t *rapid.T) policy.Input {
	cheap := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)) //nolint:gosec // A seed reproduces it.
	var in policy.Input
	fill(reflect.ValueOf(&in).Elem(), "", func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }, cheap.IntN)
	makePossible(&in, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "of") })
	return in
}

// makePossible gives an input what every input has, and what most have.
func makePossible(in *policy.Input, of source) {
	in.Now = policytest.T0
	if in.VM.Spec.Resource == nil {
		in.VM.Spec.Resource = corev1.ResourceList{}
	}
	if in.Observed.Answer == inventory.Unknown && in.Observed.Cause == nil {
		in.Observed.Cause = errors.New("no answer")
	}
	if of(3) > 0 {
		in.VM.DeletionTimestamp = nil
	}
	if of(2) > 0 {
		in.Observed.Duplicates = nil
	}
	if of(5) > 0 { // bound, to the engine that answers
		in.Driver, in.Observed.EngineID, in.VM.Status.Binding = "fake", policytest.EngineID, nil
		in.VM.Finalizers = append(in.VM.Finalizers, api.FinalizerServer)
		in.VM.Annotations = map[string]string{api.AnnotationBound: "fake/" + policytest.EngineID, "other": "secret"}
		if in.VM.DeletionTimestamp != nil && of(4) == 0 {
			in.Observed = policytest.Gone()
		}
	}
}

// fill fills a value and all that is in it.
func fill(v reflect.Value, path string, of, cheap source) {
	if _, is := leftOut[path]; is {
		of = cheap
	}
	if values := pool[v.Type()]; values != nil {
		if value := values[of(len(values))]; value != nil {
			v.Set(reflect.ValueOf(value))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if path == ".VM" || of(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), path, of, cheap)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), path+"."+v.Type().Field(i).Name, of, cheap)
		}
	case reflect.Slice:
		if n := of(4); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n-1, n-1))
		}
		for i := range v.Len() {
			fill(v.Index(i), path+"[]", of, cheap)
		}
	case reflect.Map:
		fillMap(v, path, of, cheap)
	case reflect.String:
		v.SetString(fmt.Sprint(pool[reflect.TypeFor[string]()][of(3)]))
	default:
		panic(path + " has type " + v.Type().String())
	}
}

func fillMap(v reflect.Value, path string, of, cheap source) {
	keys := []string{"other", api.AnnotationBound, string(api.ResourceCPU), string(api.ResourceMemory), string(api.ResourceRootDisk)}
	v.Set(reflect.MakeMap(v.Type()))
	for range of(4) {
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value, path+"[]", of, cheap)
		v.SetMapIndex(reflect.ValueOf(keys[of(len(keys))]).Convert(v.Type().Key()), value)
	}
}
