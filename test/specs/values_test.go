// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// engine describes the engine of a driver.
type engine struct {
	name, image string
	base        map[string]any
	// only has the fields that are tried; empty means all.
	only []string
	// seesAll is set if read returns all fields that the driver applies.
	seesAll bool
	support map[string]driver.Support
	// read returns the engine's state of a VirtualMachine, without details that differ from run to
	// run. left returns what the engine still has of a deleted VirtualMachine.
	read func(t *testing.T, vm *api.VirtualMachine) any
	left func(t *testing.T, vm *api.VirtualMachine) []string
	// workers is how many cases run at a time. Outside of the full tier only every valueStride-th
	// value and every rowStride-th row is tried; zero means none. In the full tier every fullStride-th of
	// both is tried; zero means all.
	workers, valueStride, rowStride, fullStride int
}

// suite runs the cases of one engine.
type suite struct {
	engine
	*walker
	t       *testing.T
	ns      string
	vms     dynamic.ResourceInterface
	states  *states
	initial any // the engine's state for the base spec
	next    atomic.Int64

	mu     sync.Mutex
	counts map[string]int
	// servers maps a field and the state of a server to the value of the field that led to this state.
	servers map[string]string
	wrong   []string
}

func newSuite(t *testing.T, e engine) *suite {
	t.Helper()
	schema, err := specSchema()
	must(t, err)
	w := newWalker(schema, KnownFor(e.name, e.image))
	must(t, w.walk("", schema))
	if len(e.only) > 0 {
		w.fields = slices.DeleteFunc(w.fields, func(f Field) bool { return !slices.Contains(e.only, top(f.Path)) })
	}
	s := &suite{engine: e, walker: w, t: t, ns: newNamespace(t), counts: map[string]int{}, servers: map[string]string{}}
	s.vms = environment.objects.Resource(api.SchemeGroupVersion.WithResource("virtualmachines")).Namespace(s.ns)
	s.states = watchStates(t, s.ns)
	return s
}

// settled are the ways in which a spec settles.
type settled string

const (
	ready   settled = "ready"
	stalled settled = "stalled"
	pending settled = "wait for a restart"
	// waits means that the VM waits for missing things that may appear: a Secret, an image, memory.
	waits settled = "wait for missing things"
)

func (s *suite) failf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if len(text) > 3000 {
		text = text[:3000] + "..."
	}
	s.wrong = append(s.wrong, text)
}

func (s *suite) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

func (s *suite) object(name string, spec map[string]any) *unstructured.Unstructured {
	content := map[string]any{"apiVersion": api.SchemeGroupVersion.String(), "kind": "VirtualMachine", "metadata": map[string]any{"name": name}, "spec": spec}
	text, err := json.Marshal(content) // a round trip, for the number types of a decoder
	u := &unstructured.Unstructured{}
	if err := errors.Join(err, u.UnmarshalJSON(text)); err != nil {
		panic(err)
	}
	return u
}

// create creates a VirtualMachine, and waits until it settles.
func (s *suite) create(spec map[string]any) (string, *api.VirtualMachine, error) {
	name := fmt.Sprintf("vm-%d", s.next.Add(1))
	made, err := s.vms.Create(context.Background(), s.object(name, spec), strict)
	if err != nil {
		return name, nil, err
	}
	vm, err := s.awaitGeneration(name, made.GetGeneration())
	return name, vm, err
}

// createBase creates a VirtualMachine with the base spec, which must become ready.
func (s *suite) createBase() (string, *api.VirtualMachine, error) {
	name, vm, err := s.create(s.base)
	vm, err = s.awaitRetry(name, vm, err, func(*api.VirtualMachine) bool { return false })
	switch {
	case err != nil:
		return name, vm, fmt.Errorf("the base: %w", err)
	case outcome(vm) != ready:
		return name, vm, fmt.Errorf("the base is not ready: %s", framework.FormatStatus(vm))
	}
	return name, vm, nil
}

var strict = metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}

// replace replaces the spec, and waits until it settles.
func (s *suite) replace(name string, spec map[string]any) (*api.VirtualMachine, error) {
	generation, err := s.putObject(name, spec)
	if err != nil {
		return nil, err
	}
	return s.awaitGeneration(name, generation)
}

func (s *suite) putObject(name string, spec map[string]any, dryRun ...string) (int64, error) {
	next := s.object(name, spec)
	for {
		now, err := s.vms.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		now.Object["spec"] = next.Object["spec"]
		made, err := s.vms.Update(context.Background(), now, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})
		if err == nil {
			return made.GetGeneration(), nil
		}
		if !apierrors.IsConflict(err) {
			return 0, err
		}
	}
}

func (s *suite) awaitGeneration(name string, generation int64) (*api.VirtualMachine, error) {
	return s.states.wait("settled", name, func(vm *api.VirtualMachine) bool {
		return vm != nil && vm.Status.ObservedGeneration >= generation && outcome(vm) != ""
	})
}

// outcome returns how a VirtualMachine has settled, or "" if it has not.
func outcome(vm *api.VirtualMachine) settled {
	op := vm.Status.Operation
	switch is := func(kind string) bool { return meta.IsStatusConditionTrue(vm.Status.Conditions, kind) }; {
	case is(api.ConditionStalled):
		return stalled
	case is(api.ConditionReady):
		return ready
	case op != nil && op.NextRetryTime != nil && op.Generation == vm.Generation, vm.Status.Reason == api.ReasonProbeFailing:
		return waits
	case op == nil && vm.Status.Reason == api.ReasonChangePending:
		return pending
	}
	return ""
}

// apply waits until a spec is applied, restarts the VirtualMachine if necessary, and checks that its
// message names a changed field if it is not ready.
func (s *suite) apply(name string, spec map[string]any, changed []string, vm *api.VirtualMachine, err error) (settled, error) {
	isNamed := func(vm *api.VirtualMachine) bool { return namesAny(vm.Status.Message, changed) }
	vm, err = s.awaitRetry(name, vm, err, isNamed)
	if err != nil {
		return "", err
	}
	how := outcome(vm)
	if how == pending {
		if !slices.ContainsFunc(changed, func(path string) bool {
			return slices.ContainsFunc(vm.Status.PendingFields, func(name string) bool { return name == top(path) || name == specName(path) })
		}) {
			return how, fmt.Errorf("%v waits for a restart, but the changed fields are %v", vm.Status.PendingFields, changed)
		}
		s.count("restarts")
		spec["restartedAt"] = time.Unix(1e9+s.next.Add(1), 0).UTC().Format(time.RFC3339)
		vm, err = s.replace(name, spec)
		if vm, err = s.awaitRetry(name, vm, err, isNamed); err != nil {
			return how, err
		}
		how = outcome(vm)
	}
	if how == pending || how != ready && !isNamed(vm) {
		return how, fmt.Errorf("the outcome is %q, and the message names none of %v: %s", how, changed, framework.FormatStatus(vm))
	}
	s.count(string(how))
	return how, nil
}

// awaitRetry waits until Drover's retries succeed after a failure of the engine itself: on a busy host
// runc may fail to freeze a container, and a machine may not start in time. It returns at once if isToWait
// reports that the spec makes the VirtualMachine wait.
func (s *suite) awaitRetry(name string, vm *api.VirtualMachine, err error, isToWait func(*api.VirtualMachine) bool) (*api.VirtualMachine, error) {
	if err != nil {
		return vm, err
	}
	hasFailed := slices.Contains([]string{api.ReasonOperationFailed, api.ReasonExhausted}, vm.Status.Reason)
	if outcome(vm) != waits || isToWait(vm) || !hasFailed {
		return vm, nil
	}
	s.count("engine failed")
	s.t.Logf("%s: the engine has failed: %s", name, framework.FormatStatus(vm))
	return s.states.wait("settled again", name, func(vm *api.VirtualMachine) bool {
		return vm != nil && outcome(vm) != "" && (outcome(vm) != waits || isToWait(vm))
	})
}

func top(path string) string { return steps(path)[0] }

// namesAny reports whether a message names one of the fields.
func namesAny(message string, paths []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool { return namesField(message, path) })
}

// namesField reports whether a message names a field by its path or by its last part, or names a
// field around it.
func namesField(message, path string) bool {
	parts := slices.DeleteFunc(steps(path), func(step string) bool { return step == "[]" })
	last := regexp.MustCompile(`\b` + regexp.QuoteMeta(parts[len(parts)-1]) + `\b`)
	plain := regexp.MustCompile(`\[[0-9]+\]`).ReplaceAllString(message, "")
	for n := range parts {
		if name := strings.Join(parts[:n+1], "."); strings.Contains(plain, name+":") || strings.Contains(plain, "spec."+name+" is ") {
			return true
		}
	}
	return last.MatchString(plain) && strings.Contains(plain, parts[0])
}

// saysAllowed matches words by which a refusal says which values are allowed.
var saysAllowed = regexp.MustCompile(`(?i)must|should|supported values|may not|may only|allowed|required|at most|immutable|once|exactly one|duplicate`)

// checkRefused checks that an invalid value was refused by an error that names the field and the
// allowed values.
func (s *suite) checkRefused(f Field, value any, err error) {
	s.count("refused")
	if err == nil {
		s.failf("%s: %.100v is accepted", f.Path, value)
		return
	}
	isRefused := apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
	isNamed := namesField(err.Error(), f.Path) || namesField(err.Error(), parent(f.Path))
	if !isRefused || !isNamed || !saysAllowed.MatchString(err.Error()) {
		s.failf("%s: %.100v is refused with: %.400v", f.Path, value, err)
	}
}

func parent(path string) string {
	if i := strings.LastIndexAny(path, ".{["); i > 0 {
		return path[:i]
	}
	return path
}

// isIrreversible matches refusals of a change that cannot be made, or taken back.
var isIrreversible = regexp.MustCompile(`may only grow|immutable`)

// runValue changes one field of a VirtualMachine, takes the change back and deletes the VirtualMachine.
func (s *suite) runValue(f Field, value any) {
	what := fmt.Sprintf("%s: %.80v", f.Path, value)
	changed, err := s.set(s.base, f.Path, value)
	if err != nil {
		s.failf("%s: %v", what, err)
		return
	}
	name, vm, err := s.createBase()
	if err != nil {
		s.failf("%s: %v", what, err)
		return
	}
	defer s.remove(what, name, vm)
	vm, err = s.replace(name, changed)
	if isRefusal(err) && isIrreversible.MatchString(err.Error()) && namesField(err.Error(), f.Path) {
		s.count("only at creation")
		return
	}
	how, err := s.apply(name, changed, s.withRequired([]string{f.Path}), vm, err)
	if err != nil {
		s.failf("%s: %v", what, err)
		return
	}
	if how == ready && s.isSeen(f, value) {
		s.checkEffect(what, f, s.read(s.t, vm))
	}
	s.rollBack(what, name, changed)
}

// checkEffect checks that a server's state differs from its state without the value, and with other values.
func (s *suite) checkEffect(what string, f Field, state any) {
	if reflect.DeepEqual(state, s.initial) {
		s.failf("%s: the VM is ready, but the server is as without the value", what)
	}
	text, err := json.Marshal(state)
	if err != nil {
		s.failf("%s: %v", what, err)
	}
	key := f.Path + " " + string(text)
	s.mu.Lock()
	other := s.servers[key]
	s.servers[key] = what
	s.mu.Unlock()
	if other != "" {
		s.failf("%s: the VM is ready, but the server is as with %s", what, other)
	}
}

// isSeen reports whether the state of the engine shows that a field differs from the base.
func (s *suite) isSeen(f Field, value any) bool {
	support := s.support[specName(f.Path)]
	if !s.seesAll || support != driver.AppliedLive && support != driver.AppliedAtRestart || slices.Contains(s.known.Unseen, f.Path) || slices.Contains(s.known.Unseen, top(f.Path)) {
		return false
	}
	if list, ok := value.([]any); ok && len(list) == 0 {
		return false
	}
	schema := schemaAt(s.root, f.Path)
	var usual any
	if schema.Default != nil {
		_ = json.Unmarshal(schema.Default.Raw, &usual)
	}
	at, err := s.set(s.base, f.Path, value)
	return err == nil && !reflect.DeepEqual(at, s.base) && value != usual && value != "" && value != false
}

// specName returns the name of a field in SupportedFields of drivers.
func specName(path string) string {
	name := strings.NewReplacer("[]", "", "{", ".", "}", "").Replace(path)
	for _, secret := range []string{"userData", "networkData"} {
		if strings.HasPrefix(name, secret+".") {
			return secret
		}
	}
	if strings.HasPrefix(name, "env.valueFrom.") {
		return "env.value"
	}
	return name
}

func isRefusal(err error) bool { return apierrors.IsInvalid(err) }

// rollBack changes a VirtualMachine back to the base, and checks that its server is as before.
func (s *suite) rollBack(what, name string, from map[string]any) {
	vm, back, isWhole, err := s.replaceByBase(name, from)
	vm, err = s.awaitRetry(name, vm, err, func(*api.VirtualMachine) bool { return !isWhole })
	how, err := s.apply(name, back, s.withRequired(slices.Sorted(maps.Keys(from))), vm, err)
	switch {
	case err == nil && how == waits && !isWhole:
		return // waits for space for the disk, which may only grow
	case err != nil || how != ready:
		s.failf("%s: taken back, the outcome is %q: %v", what, how, err)
		return
	}
	if vm, err = s.states.wait("there", name, func(vm *api.VirtualMachine) bool { return vm != nil }); err != nil {
		s.failf("%s: %v", what, err)
		return
	}
	s.count("rolled back")
	if got := s.read(s.t, vm); !reflect.DeepEqual(got, s.initial) {
		s.failf("%s: taken back, the engine has\n%+v, want\n%+v", what, got, s.initial)
	}
}

// replaceByBase replaces a spec by the base, except fields that may only grow, and waits until the
// VirtualMachine settles.
func (s *suite) replaceByBase(name string, from map[string]any) (vm *api.VirtualMachine, back map[string]any, isWhole bool, err error) {
	back = maps.Clone(s.base)
	if at, ok := from["restartedAt"]; ok {
		back["restartedAt"] = at
	}
	vm, err = s.replace(name, back)
	if !isRefusal(err) || !isIrreversible.MatchString(err.Error()) {
		return vm, back, true, err
	}
	s.count("in part irreversible")
	resource, _ := from["resource"].(map[string]any)
	if back, err = s.set(back, s.known.Growing, resource["rootDisk"]); err == nil {
		vm, err = s.replace(name, back)
	}
	return vm, back, false, err
}

// remove deletes a VirtualMachine, and checks that nothing is left of it.
func (s *suite) remove(what, name string, vm *api.VirtualMachine) {
	if err := s.vms.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		s.failf("%s: deletion: %v", what, err)
		return
	}
	gone := func(vm *api.VirtualMachine) bool { return vm == nil }
	_, err := s.states.wait("gone", name, gone)
	if err != nil && vm.Spec.ShutdownGracePeriodSeconds != nil && *vm.Spec.ShutdownGracePeriodSeconds > shortGrace {
		// A guest that has not set up its signal handler yet ignores the signal to end.
		s.count("grace lowered")
		if err = s.lowerGrace(name); err == nil {
			_, err = s.states.wait("gone", name, gone)
		}
	}
	if err != nil {
		s.failf("%s: %v", what, err)
		return
	}
	s.count("deleted")
	if left := s.left(s.t, vm); len(left) > 0 {
		s.failf("%s: after the deletion there are %v", what, left)
	}
}

// shortGrace is a grace period, in seconds, that is shorter than the timeout of waits.
const shortGrace = 10

// lowerGrace makes Drover soon kill a guest that ignores the signal to end.
func (s *suite) lowerGrace(name string) error {
	patch := fmt.Appendf(nil, `{"spec":{"shutdownGracePeriodSeconds":%d}}`, shortGrace)
	_, err := s.vms.Patch(context.Background(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// runRow creates a VirtualMachine with many values at once, takes them back and deletes the VirtualMachine.
func (s *suite) runRow(n int, fields []Field, row []int) {
	what := fmt.Sprintf("row %d", n)
	spec, set, err := s.rowSpec(fields, row)
	if err != nil {
		s.failf("%s: %v", what, err)
		return
	}
	name, vm, err := s.create(spec)
	if vm == nil {
		s.failf("%s: %v", what, err)
		return
	}
	defer s.remove(what, name, vm)
	if _, err = s.apply(name, spec, s.withRequired(set), vm, err); err != nil {
		s.failf("%s: %v", what, err)
		return
	}
	if n%2 == 0 { // the others are deleted without a change back
		s.rollBack(what, name, spec)
	}
}

// withRequired returns all fields below the top-level fields of some fields: set also sets required ones.
func (s *suite) withRequired(set []string) (paths []string) {
	for _, f := range s.fields {
		if slices.ContainsFunc(set, func(path string) bool { return top(path) == top(f.Path) }) {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

// rowSpec returns the spec of a row, and the fields that it sets.
func (s *suite) rowSpec(fields []Field, row []int) (spec map[string]any, set []string, err error) {
	spec = s.base
	for i, choice := range row {
		if choice == absent {
			continue
		}
		set = append(set, fields[i].Path)
		if spec, err = s.set(spec, fields[i].Path, fields[i].Valid[choice]); err != nil {
			return nil, nil, err
		}
	}
	return maps.Clone(spec), set, nil
}

// inParallel runs functions in the engine's workers.
func (s *suite) inParallel(all []func()) {
	todo := make(chan func())
	var wait sync.WaitGroup
	for range s.workers {
		wait.Go(func() {
			for run := range todo {
				run()
			}
		})
	}
	for _, run := range all {
		todo <- run
	}
	close(todo)
	wait.Wait()
}

// runAll tries each value alone, and then values in rows.
func (s *suite) runAll() {
	began := time.Now()
	_, vm, err := s.createBase()
	assert.NoError(s.t, err)
	s.initial = s.read(s.t, vm)
	var valid, invalid, values []func()
	for _, f := range s.fields {
		for _, value := range f.Valid {
			values = append(values, func() { s.runValue(f, value) })
		}
		for _, value := range f.Invalid {
			if s.refusesHere() {
				invalid = append(invalid, func() { s.refuse(vm.Name, f, value, s.base) })
			}
		}
	}
	valid = s.every(values, s.valueStride)
	s.inParallel(slices.Concat(invalid, valid))
	single := time.Since(began)
	rows, run, pairs := s.runRows(vm.Name)
	s.remove("the base", vm.Name, vm)
	seen, violations := s.states.report()
	s.wrong = append(s.wrong, violations...)
	s.t.Logf("%s: fields %d, valid values %d of %d, invalid %d in %s; rows %d of %d for %d pairs; outcomes %v; states %d; violations %d; %s",
		s.name, len(s.fields), len(valid), len(values), len(invalid), single.Round(time.Second), run, rows, pairs, s.counts, seen, len(s.wrong), time.Since(began).Round(time.Second))
	for _, wrong := range s.wrong {
		s.t.Error(wrong)
	}
}

// refusesHere reports whether invalid values are tried with this engine. The API refuses them for all
// engines, so that one engine is enough outside of the full tier.
func (s *suite) refusesHere() bool { return tier.IsFull() || s.name == "fake" }

// every returns every stride-th function, in the full tier every fullStride-th.
func (s *suite) every(all []func(), stride int) (some []func()) {
	if tier.IsFull() {
		stride = max(s.fullStride, 1)
	}
	for i := 0; stride > 0 && i < len(all); i += stride {
		some = append(some, all[i])
	}
	return some
}

// refuse checks that a value is refused in place of a valid one.
func (s *suite) refuse(name string, f Field, value any, in map[string]any) {
	spec, err := s.set(in, f.Path, value)
	if err != nil {
		s.failf("%s: %v", f.Path, err)
		return
	}
	_, err = s.putObject(name, spec, metav1.DryRunAll)
	s.checkRefused(f, value, err)
}

func (s *suite) isMasking(f Field) bool {
	return slices.ContainsFunc(s.known.Masking, func(path string) bool { return strings.HasPrefix(f.Path, path+".") })
}

// maskedStride divides the number of rows that are tried although they never become ready.
const maskedStride = 4

// runRows runs values in rows, and each invalid value in a row. Values that keep a server from being
// ready are in separate rows, since they mask the effects of the other values.
func (s *suite) runRows(base string) (rows, run, pairs int) {
	all := s.rowFields()
	plain := slices.DeleteFunc(slices.Clone(all), s.isMasking)
	for stride, fields := range map[int][]Field{s.rowStride: plain, s.rowStride * maskedStride: all} {
		made, met := Rows(fields, s.known.Exclusive)
		var valid []func()
		for n, row := range made {
			valid = append(valid, func() { s.runRow(n, fields, row) })
		}
		valid = s.every(valid, stride)
		run += len(valid)
		if stride == s.rowStride && s.refusesHere() {
			valid = append(valid, s.invalidRows(base, fields, made)...)
		}
		s.inParallel(valid)
		rows, pairs = rows+len(made), max(pairs, met)
	}
	return rows, run, pairs
}

// rowFields returns the fields that are combined. If known.go has values of a field, the field gets
// only these values: another value, such as a Secret that does not exist, would keep the other values
// of a row from being tried.
func (s *suite) rowFields() (fields []Field) {
	for _, f := range s.fields {
		if f.Alone || len(f.Valid) == 0 || s.isUnsupported(f.Path) {
			continue
		}
		if known := s.known.Values[f.Path]; len(known.Valid) > 0 {
			f.Valid = known.Valid
			if s.name != "fake" && known.Real > 0 {
				f.Valid = f.Valid[:known.Real]
			}
		}
		fields = append(fields, f)
	}
	return fields
}

// isUnsupported reports whether the driver refuses a field, which would mask all other fields of a
// row.
func (s *suite) isUnsupported(path string) bool {
	name := specName(path)
	for declared, support := range s.support {
		if support == driver.Unsupported && (name == declared || strings.HasPrefix(name, declared+".") || strings.HasPrefix(declared, name+".")) {
			return true
		}
	}
	return false
}

// invalidRows returns functions that put each invalid value into otherwise valid rows.
func (s *suite) invalidRows(base string, fields []Field, rows [][]int) (all []func()) {
	n := 0
	for _, f := range s.fields {
		for _, value := range f.Invalid {
			for r := range rows {
				if n++; !tier.IsFull() && n%len(rows) != 0 || f.Path == "driver" {
					continue
				}
				all = append(all, func() {
					spec, _, err := s.rowSpec(fields, rows[r])
					if err != nil {
						s.failf("row %d: %v", r, err)
						return
					}
					s.refuse(base, f, value, spec)
				})
			}
		}
	}
	return all
}

// restTime is for how long no write may happen at rest.
const restTime = 3 * time.Second

// TestRest checks that settled VirtualMachines are not written to, for many different specs.
func TestRest(t *testing.T) {
	t.Parallel()
	s := newSuite(t, fakeEngine())
	fields := slices.DeleteFunc(s.rowFields(), s.isMasking)
	rows, _ := Rows(fields, s.known.Exclusive)
	var atRest []string
	count, within := 12, restTime
	if tier.IsFull() {
		count, within = 24, time.Minute
	}
	for _, row := range rows[:min(len(rows), count)] {
		spec, _, err := s.rowSpec(fields, row)
		must(t, err)
		name, vm, err := s.create(spec)
		must(t, err)
		if how := outcome(vm); how == ready || how == stalled {
			atRest = append(atRest, name)
		}
		defer s.remove("rest", name, vm)
	}
	assert.Eventually(t, "nothing is written at rest", func(t testing.TB) error {
		before := s.states.all()
		time.Sleep(within)
		now := s.states.all()
		for _, name := range atRest {
			vm := now[name]
			assert.True(t, vm.ResourceVersion == before[name].ResourceVersion, "%s: spec %s, status %s", name, specText(vm), framework.FormatStatus(vm))
		}
		return nil
	})
	t.Logf("rest: VirtualMachines %d, %s", len(atRest), within)
}
