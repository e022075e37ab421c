// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/test/assert"
)

// recordedTexts maps paths in a record's JSON to the field of the object or the server that is the source
// of the text. Everyone who may read the status may read these texts.
var recordedTexts = map[string]string{
	"vm.namespace": "VM.ObjectMeta.Namespace", "vm.name": "VM.ObjectMeta.Name", "vm.uid": "VM.ObjectMeta.UID",
	"vm.binding.driver": "VM.Status.Binding.Driver", "vm.binding.engineID": "VM.Status.Binding.EngineID", "vm.binding.uid": "VM.ObjectMeta.UID",
	"vm.spec.action": "VM.Spec.Action", "vm.spec.driver": "VM.Spec.Driver", "vm.spec.deletionPolicy": "VM.Spec.DeletionPolicy",
	"vm.spec.restartPolicy": "VM.Spec.RestartPolicy",
	"vm.status.server.id":   "VM.Status.Server.ID", "vm.status.server.state": "VM.Status.Server.State",
	"vm.status.server.run": "VM.Status.Server.Run", "vm.status.server.stoppedRun": "VM.Status.Server.StoppedRun",
	"vm.status.operation.type": "VM.Status.Operation.Type", "vm.status.operation.failure": "VM.Status.Operation.Failure",
	"vm.status.operation.reason": "VM.Status.Operation.Reason", "vm.status.operation.lastError": "VM.Status.Operation.LastError",
	"vm.status.operation.run": "VM.Status.Operation.Run", "vm.status.pendingFields": "VM.Status.PendingFields",
	"vm.status.refusedField.field": "VM.Status.RefusedField.Field", "vm.status.refusedField.reason": "VM.Status.RefusedField.Reason",
	"vm.status.refusedField.message": "VM.Status.RefusedField.Message",
	"observed.engineID":              "Observed.EngineID", "observed.duplicates": "Observed.Duplicates", "observed.cause": "Observed.Cause",
	"observed.server.id": "Observed.Server.ID", "observed.server.run": "Observed.Server.Run", "observed.server.state": "Observed.Server.State",
	"observed.server.progress": "Observed.Server.Progress", "observed.server.note": "Observed.Server.Note",
	"observed.server.error": "Observed.Server.Err", "observed.server.exit.reason": "Observed.Server.Exit.Reason",
	"observed.server.exit.message": "Observed.Server.Exit.Message", "observed.server.disruption": "Observed.Server.Disruption",
}

// fullStep returns a step of an object and a server that have a value everywhere. Each
// text in them is the path of its field.
func fullStep() *step {
	var vm api.VirtualMachine
	var observed inventory.Observation
	plant(reflect.ValueOf(&vm).Elem(), "VM")
	plant(reflect.ValueOf(&observed).Elem(), "Observed")
	vm.Status.Binding.UID = vm.UID
	vm.Spec.Resource[api.ResourceCPU], vm.Spec.Resource[api.ResourceMemory] = resource.MustParse("1"), resource.MustParse("1Gi")
	vm.Status.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue, Message: "VM.Status.Conditions"}}
	observed.Answer = inventory.Present
	return stepOf(&vm, observed)
}

// plant sets every field of a value, texts to their path.
func plant(v reflect.Value, path string) {
	switch value := v.Addr().Interface().(type) {
	case *metav1.Time:
		value.Time = vmtest.T0
		return
	case *metav1.MicroTime:
		value.Time = vmtest.T0
		return
	case *time.Time:
		*value = vmtest.T0
		return
	case *resource.Quantity:
		*value = resource.MustParse("1")
		return
	case *error:
		*value = driver.WithReason("Reason", errors.New(path))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(path)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		plant(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		plant(v.Index(0), path)
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		plant(value, path)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(path).Convert(v.Type().Key()), value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				plant(v.Field(i), path+"."+v.Type().Field(i).Name)
			}
		}
	default:
	}
}

// TestOnlyAllowedTextsAreRecorded sets every text of an object and a server, and checks which of them
// the record has.
func TestOnlyAllowedTextsAreRecorded(t *testing.T) {
	t.Parallel()
	p := fullStep()
	in := p.r.inputOf(p.facts)
	text, err := json.Marshal(decisions.New(in, policy.Decide(in)).Input)
	assert.NoError(t, err)
	var tree map[string]any
	assert.NoError(t, json.Unmarshal(text, &tree))
	found := map[string]string{}
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch value := value.(type) {
		case string:
			if strings.Contains(value, "VM.") || strings.Contains(value, "Observed.") {
				found[path] = value
			}
		case []any:
			for _, element := range value {
				walk(path, element)
			}
		case map[string]any:
			for name, element := range value {
				walk(strings.TrimPrefix(path+"."+name, "."), element)
			}
		}
	}
	walk("", tree)
	for path, source := range found {
		assert.Equal(t, "a record has "+source+" as "+path+": allowed", recordedTexts[path], source)
	}
	for path, source := range recordedTexts {
		assert.True(t, found[path] != "", "no record has %s as %s", source, path)
	}
}

// TestEveryFactIsFilledIn fails for a field of an input that is not filled from the object or the
// server.
func TestEveryFactIsFilledIn(t *testing.T) {
	t.Parallel()
	p := fullStep()
	in := p.r.inputOf(p.facts)
	p.observed.Answer = inventory.Gone
	var check func(path string, v reflect.Value)
	check = func(path string, v reflect.Value) {
		if v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]() {
			for i := range v.NumField() {
				check(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
			return
		}
		assert.True(t, !v.IsZero(), "%s is empty", path)
	}
	in.VM.IsBound = true // a binding that differs from the annotation
	exit := &in.Observed.Server.Exit
	exit.NeverRan, exit.StartFailed = true, true // TestExitFacts
	check("VM", reflect.ValueOf(in.VM))
	check("Observed", reflect.ValueOf(in.Observed))
}

// TestExitFacts checks which facts follow from the reason that a driver gives for the end of a run.
func TestExitFacts(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]policy.Exit{
		"Error":                 {},
		driver.ExitHostShutdown: {ByHost: true},
		driver.ExitNeverRan:     {NeverRan: true},
		driver.ExitRejected:     {NeverRan: true},
		driver.ExitNotStarted:   {NeverRan: true, StartFailed: true},
	} {
		want.HasEnded, want.Reason = true, reason
		got := translate.Server(&driver.Server{Exit: &driver.Exit{Reason: reason}}).Exit
		assert.True(t, got == want, "%+v, want %+v", got, want)
	}
}

// TestTextsAreCut checks that a record has the beginning of a long text, as valid UTF-8.
func TestTextsAreCut(t *testing.T) {
	t.Parallel()
	for _, letters := range []string{"a", "ä", "€", "𝄞", "a\xff"} {
		for n := translate.MaxText/len(letters) - 3; n < translate.MaxText/len(letters)+3; n++ {
			p := stepOf(vmtest.ReportedVM().Obj(), vmtest.Unknown(time.Hour))
			p.observed.Cause = errors.New(strings.Repeat(letters, n))
			for _, text := range []string{p.r.inputOf(p.facts).Observed.Cause, policy.Decide(p.r.inputOf(p.facts)).Status.Message} {
				assert.Require(t, len(text) <= translate.MaxText && len(text) >= translate.MaxText-4*len(letters) && utf8.ValidString(text),
					"%d of %q: %d bytes", n, letters, len(text))
			}
		}
	}
}

// TestWordsOfDrivers compares the states and powers of the policy with those of the drivers.
func TestWordsOfDrivers(t *testing.T) {
	t.Parallel()
	words := func(path string) (all []string) {
		source, err := os.ReadFile(path)
		assert.NoError(t, err)
		for _, line := range regexp.MustCompile(`\b(?:State|Power)\w+ +(?:State|Power) += ".*"`).FindAllString(string(source), -1) {
			all = append(all, strings.Join(strings.Fields(line), " "))
		}
		return all
	}
	if got, want := words("../policy/input.go"), words("../driver/driver.go"); len(want) != 12 || !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("the policy has\n%s\nthe drivers have\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
