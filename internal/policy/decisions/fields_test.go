// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/assert"
)

// leftOut are the fields of policy.Input that are not recorded, with the reason. A field stands
// for all that is in it.
var leftOut = map[string]string{
	".VM.TypeMeta":                              "always the same",
	".VM.ObjectMeta.GenerateName":               "no decision depends on it",
	".VM.ObjectMeta.SelfLink":                   "no decision depends on it",
	".VM.ObjectMeta.ResourceVersion":            "no decision depends on it",
	".VM.ObjectMeta.CreationTimestamp":          "of another clock; no decision depends on it",
	".VM.ObjectMeta.DeletionGracePeriodSeconds": "the grace period is that of the spec",
	".VM.ObjectMeta.Labels":                     "the user's, with any content",
	".VM.ObjectMeta.Annotations[other]":         "the user's, with any content, such as the last applied manifest",
	".VM.ObjectMeta.OwnerReferences":            "no decision depends on it",
	".VM.ObjectMeta.Finalizers[other]":          "others'",
	".VM.ObjectMeta.ManagedFields":              "no decision depends on it",
	".VM.Spec.Image":                            "passed to the driver; may have a kernel's command line",
	".VM.Spec.Volumes":                          "passed to the driver",
	".VM.Spec.UserData":                         "secret",
	".VM.Spec.NetworkData":                      "secret",
	".VM.Spec.SSHAuthorizedKeys":                "passed to the driver",
	".VM.Spec.Ports":                            "passed to the driver",
	".VM.Spec.Ephemeral":                        "passed to the driver",
	".VM.Spec.StorageClassName":                 "passed to the driver",
	".VM.Spec.EvictionPolicy":                   "passed to the driver",
	".VM.Spec.NodeSelector":                     "passed to the driver",
	".VM.Spec.Affinity":                         "passed to the driver",
	".VM.Spec.Tolerations":                      "passed to the driver",
	".VM.Spec.TopologySpreadConstraints":        "passed to the driver",
	".VM.Spec.PriorityClassName":                "passed to the driver",
	".VM.Spec.RuntimeClassName":                 "passed to the driver",
	".VM.Spec.ReadinessProbe":                   "its result is recorded",
	".VM.Status.Conditions[other]":              "wording decides nothing, but for whether Ready is true",
	".VM.Status.Phase":                          "a summary; no decision depends on it",
	".VM.Status.Reason":                         "wording decides nothing",
	".VM.Status.Message":                        "wording decides nothing",
	".VM.Status.Server.Generation":              "it is in PassedGeneration",
	".VM.Status.Server.ImageID":                 "no decision depends on it",
	".VM.Status.Server.Accelerator":             "no decision depends on it",
	".VM.Status.Server.Usage":                   "no decision depends on it",
	".VM.Status.Objects":                        "passed to the driver",
	".VM.Status.Addresses":                      "no decision depends on it",
	".VM.Status.Ports":                          "no decision depends on it",
	".VM.Status.Operation.StartedAt":            "of any clock; Since has when it began",
	".VM.Status.RestartCount":                   "no decision depends on it",
	".VM.Status.LastUpdateTime":                 "no decision depends on it",
	".Observed.Rates":                           "no decision depends on it",
	".Observed.Server.UID":                      "that of the VM",
	".Observed.Server.Namespace":                "that of the VM",
	".Observed.Server.Name":                     "that of the VM",
	".Observed.Server.Exit.Output":              "what a program printed",
	".Observed.Server.Host":                     "no decision depends on it",
	".Observed.Server.Pending":                  "the status has it",
	".Observed.Server.Refused":                  "the status has it",
	".Observed.Server.ImageID":                  "no decision depends on it",
	".Observed.Server.Accelerator":              "no decision depends on it",
	".Observed.Server.Confinement":              "no decision depends on it",
	".Observed.Server.Addresses":                "no decision depends on it",
	".Observed.Server.Ports":                    "no decision depends on it",
	".Observed.Server.Objects":                  "the status has it",
	".Observed.Server.Retained":                 "a released server is never a VM's",
}

// isSpecial says what of fields with lists and maps is recorded: an entry. TestSpecialFields has
// these.
var isSpecial = map[string]string{
	".VM.ObjectMeta.Annotations": "the binding", ".VM.ObjectMeta.Finalizers": "Drover's", ".VM.Status.Conditions": "Ready",
}

// TestEveryFieldIsRecorded fails for a field of policy.Input that is neither recorded nor left
// out with a reason. A field counts as recorded if another value of it leads to another record.
func TestEveryFieldIsRecorded(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	walk(reflect.TypeFor[policy.Input](), "", func(path string, steps []int) {
		recorded := isRecorded(t, steps)
		reason, out := leftOut[path]
		seen[path] = true
		switch _, special := isSpecial[path]; {
		case special:
		case recorded && out:
			t.Errorf("%s is recorded, and said to be left out: %s", path, reason)
		case !recorded && !out:
			t.Errorf("%s is neither recorded nor left out with a reason: add it to the record, or to leftOut", path)
		}
	})
	for path, reason := range leftOut {
		if !seen[path] && !strings.HasSuffix(path, "[other]") || reason == "" {
			t.Errorf("%s is no field of policy.Input any more, or has no reason", path)
		}
	}
	if len(seen) < 90 {
		t.Errorf("there are only %d fields", len(seen))
	}
}

// walk calls f for every field, and for every struct that is left out or special as a whole.
func walk(of reflect.Type, path string, f func(path string, steps []int)) { walkFrom(of, path, nil, f) }

func walkFrom(of reflect.Type, path string, steps []int, f func(string, []int)) {
	_, out := leftOut[path]
	_, special := isSpecial[path]
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if out || special || pool[of] != nil || of.Kind() != reflect.Struct {
		f(path, steps)
		return
	}
	for i := range of.NumField() {
		walkFrom(of.Field(i).Type, path+"."+of.Field(i).Name, append(slices.Clip(steps), i), f)
	}
}

// isRecorded reports whether records of inputs that differ in a field alone differ.
func isRecorded(t *testing.T, steps []int) bool {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // It has to be the same each time.
	for range 60 {
		one, other := baseInput(), baseInput()
		fill(fieldOf(reflect.ValueOf(&one).Elem(), steps), "?", random.IntN, random.IntN)
		fill(fieldOf(reflect.ValueOf(&other).Elem(), steps), "?", random.IntN, random.IntN)
		if New(&one, &policy.Decision{}).Input != New(&other, &policy.Decision{}).Input {
			return true
		}
	}
	return false
}

// fieldOf returns a field, and makes the pointers to it.
func fieldOf(v reflect.Value, steps []int) reflect.Value {
	for _, i := range steps {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

func baseInput() policy.Input {
	return policy.Input{VM: policytest.ReportedVM().Obj(), Now: policytest.T0}
}

// TestEveryPartOfADecisionIsRecorded fails for a field of policy.Decision that is not recorded.
func TestEveryPartOfADecisionIsRecorded(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // It has to be the same each time.
	var check func(of reflect.Type, path string, steps []int)
	check = func(of reflect.Type, path string, steps []int) {
		if of.Kind() == reflect.Struct && pool[of] == nil {
			for i := range of.NumField() {
				check(of.Field(i).Type, path+"."+of.Field(i).Name, append(slices.Clip(steps), i))
			}
			return
		}
		in := baseInput()
		for range 60 {
			var one, other policy.Decision
			fill(fieldOf(reflect.ValueOf(&one).Elem(), steps), "?", random.IntN, random.IntN)
			fill(fieldOf(reflect.ValueOf(&other).Elem(), steps), "?", random.IntN, random.IntN)
			if New(&in, &one).Decision != New(&in, &other).Decision {
				return
			}
		}
		t.Errorf("%s is not recorded", path)
	}
	check(reflect.TypeFor[policy.Decision](), "", nil)
}

// TestSecretsAreLeftOut fills an input with a text in every field that is left out. The record
// does not have it.
func TestSecretsAreLeftOut(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	in := baseInput()
	n := 0
	walk(reflect.TypeFor[policy.Input](), "", func(path string, steps []int) {
		if _, out := leftOut[path]; out {
			n += plant(fieldOf(reflect.ValueOf(&in).Elem(), steps), secret)
		}
	})
	in.VM.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = secret
	in.VM.Finalizers = append(in.VM.Finalizers, secret)
	plant(reflect.ValueOf(&in.VM.Status.Conditions).Elem(), secret)
	if n < 60 {
		t.Errorf("only %d texts were planted", n)
	}
	d := policy.Decide(in)
	record := New(&in, &d)
	text, err := json.Marshal(record)
	if err != nil || strings.Contains(string(text), secret) || strings.Contains(Format(record), secret) {
		t.Errorf("%v: %s\n%s", err, text, Format(record))
	}
}

// plant puts a text everywhere into a value, and returns in how many places.
func plant(v reflect.Value, text string) (n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
		return 1
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return plant(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		return plant(v.Index(0), text)
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		n = plant(value, text)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(text).Convert(v.Type().Key()), value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				n += plant(v.Field(i), text)
			}
		}
	default:
	}
	return n
}

// TestEveryKindOfErrorIsRecorded compares the table of kinds with the source of package driver.
func TestEveryKindOfErrorIsRecorded(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../driver/errors.go")
	assert.NoError(t, err)
	known := map[string]bool{}
	for _, k := range kinds {
		known[k.name] = true
	}
	found := regexp.MustCompile(`(?m)^(?:var|\t)\s*Err(\w+)\s+= (?:errors.New|Errorf)\(`).FindAllStringSubmatch(string(source), -1)
	for _, match := range found {
		if !known[match[1]] {
			t.Errorf("driver.Err%s is not in kinds", match[1])
		}
	}
	if len(found) != len(kinds) {
		t.Errorf("there are %d sentinels and %d kinds", len(found), len(kinds))
	}
}
