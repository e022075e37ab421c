// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package filesync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// guest is a guest that has the files that were written last.
type guest struct {
	mu     sync.Mutex
	silent bool  // it does not answer
	err    error // of writes
	has    map[string]driver.FileMount
	looks  int
	writes int
	// stalls has the UIDs whose writes end with their context, and stalled how many do at the moment.
	stalls  map[types.UID]bool
	stalled int
	lacks   string // a folder that it does not have
}

func (g *guest) FileRevisions(context.Context, types.UID) (map[string]string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.looks++; g.silent {
		return nil, errors.New("no answer")
	}
	revisions := map[string]string{"/one": g.has["/one"].Revision, "/two": g.has["/two"].Revision}
	delete(revisions, g.lacks)
	return revisions, nil
}

func (g *guest) WriteFiles(ctx context.Context, uid types.UID, mount driver.FileMount) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stalls[uid] {
		g.stalled++
		g.mu.Unlock()
		<-ctx.Done()
		g.mu.Lock()
		g.stalled--
		return ctx.Err()
	}
	if g.err != nil {
		return g.err
	}
	g.writes++
	g.has[mount.MountPath] = mount
	return nil
}

func (g *guest) setError(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

// rig has a Syncer, and the VirtualMachine vm with the Secret one as /one and the ConfigMap two as /two.
type rig struct {
	t        *testing.T
	clock    *clocktesting.FakeClock
	api      client.Client
	guest    *guest
	syncer   *Syncer
	requeued chan types.NamespacedName
	// versions and contents count the reads of the API.
	versions, contents atomic.Int64
	vm                 *api.VirtualMachine
	observed           inventory.Observation
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g := &rig{
		t: t, clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), guest: &guest{has: map[string]driver.FileMount{}}, requeued: make(chan types.NamespacedName, 100),
	}
	g.api = fake.NewClientBuilder().WithObjects(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}, Data: map[string][]byte{"key": []byte("0")}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "two"}, Data: map[string]string{"key": "0"}},
	).WithInterceptorFuncs(interceptor.Funcs{Get: g.countRead}).Build()
	g.vm = framework.NewVM("vm").Spec(func(s *api.VirtualMachineSpec) {
		s.Files = []api.FileMount{
			{MountPath: "/one", Secret: &api.SecretFiles{SecretName: "one"}}, {MountPath: "/two", ConfigMap: &api.ConfigMapFiles{Name: "two"}},
		}
	}).Obj()
	g.observed = inventory.Observation{Answer: inventory.Present, Server: driver.Server{UID: "uid-1", ID: "id", Run: "1", State: driver.StateRunning}}
	g.syncer = (&Syncer{
		Clock: g.clock, Live: g.api, Driver: g.guest, MayAct: func() error { return nil },
		Requeue: func(key types.NamespacedName) { g.requeued <- key },
	}).Start(t.Context())
	return g
}

func (g *rig) countRead(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, ok := o.(*metav1.PartialObjectMetadata); ok {
		g.versions.Add(1)
	} else {
		g.contents.Add(1)
	}
	return c.Get(ctx, key, o, options...)
}

// wantResult lets periods pass until Check returns a reason with a text in its message.
func (g *rig) wantResult(reason, text string) {
	g.t.Helper()
	assert.Eventually(g.t, reason, func(t testing.TB) error {
		result := g.syncer.Check(g.vm, g.observed)
		if result.Reason != reason {
			g.clock.Step(period)
			return fmt.Errorf("the result is %+v", result)
		}
		assert.Contains(t, "the message", result.Message, text)
		return nil
	})
}

func (g *rig) setSecret(data map[string][]byte) {
	g.t.Helper()
	var secret corev1.Secret
	assert.NoError(g.t, g.api.Get(g.t.Context(), types.NamespacedName{Namespace: "default", Name: "one"}, &secret))
	secret.Data = data
	assert.NoError(g.t, g.api.Update(g.t.Context(), &secret))
}

// wantText waits until the guest has a text as the key of the Secret.
func (g *rig) wantText(text string) {
	g.t.Helper()
	assert.Eventually(g.t, "the guest has "+text, func(testing.TB) error {
		g.guest.mu.Lock()
		defer g.guest.mu.Unlock()
		files := g.guest.has["/one"].Files
		if len(files) == 1 && files[0].Data.Reveal() == text {
			return nil
		}
		g.clock.Step(period)
		return errors.New("it has other files")
	})
}

// TestChanges checks that a running guest gets changes, the last of many, and gets them again after it has lost them.
func TestChanges(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.wantResult(api.ReasonFilesCurrent, "")
	assert.Equal(t, "requeued", assert.Receive(t, "a requeue", g.requeued), client.ObjectKeyFromObject(g.vm))
	g.wantText("0")
	g.guest.mu.Lock()
	before := g.guest.writes
	g.guest.mu.Unlock()
	for n := range 100 {
		g.setSecret(map[string][]byte{"key": fmt.Append(nil, n)})
	}
	g.wantText("99")
	g.guest.mu.Lock()
	assert.True(t, g.guest.writes-before <= 2, "100 changes without a pause were written %d times", g.guest.writes-before)
	g.guest.has = map[string]driver.FileMount{} // as after a reset
	g.guest.mu.Unlock()
	g.wantText("99")
}

// TestMissing checks that a guest keeps the files of a Secret that is gone or too large, with a reason, and still gets
// other files.
func TestMissing(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.wantResult(api.ReasonFilesCurrent, "")
	g.setSecret(map[string][]byte{"key": make([]byte, 1<<20+1)})
	g.wantResult(api.ReasonFilesUnavailable, `spec.files[0], /one: Secret "one" has 1048577 bytes in 1 files: at most 1048576 bytes`)
	g.setSecret(map[string][]byte{"key": []byte("1")})
	g.wantResult(api.ReasonFilesCurrent, "")
	g.wantText("1")
	assert.NoError(t, g.api.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}}))
	g.wantResult(api.ReasonFilesUnavailable, `Secret "one" does not exist`)
	var two corev1.ConfigMap
	assert.NoError(t, g.api.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "two"}, &two))
	two.Data["key"] = "new"
	assert.NoError(t, g.api.Update(t.Context(), &two))
	assert.Eventually(t, "the guest has the other files", func(testing.TB) error {
		g.clock.Step(period)
		g.guest.mu.Lock()
		defer g.guest.mu.Unlock()
		return assert.ErrorUnless(g.guest.has["/two"].Files[0].Data.Reveal() == "new", "it has older ones")
	})
	g.wantText("1")
}

// TestStale checks that a guest that cannot be written is reported, and gets its files once it can be.
func TestStale(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.guest.setError(errors.New("no answer"))
	g.wantResult(api.ReasonFilesStale, "the guest keeps older files: /one: no answer")
	g.guest.setError(nil)
	g.wantResult(api.ReasonFilesCurrent, "")
	g.wantText("0")
	g.guest.mu.Lock()
	g.guest.lacks = "/two"
	g.guest.mu.Unlock()
	g.wantResult(api.ReasonFilesStale, "/two: this run does not have the folder")
}

// TestSilentGuest checks that a guest that does not answer is asked less and less often, without a read of the API.
func TestSilentGuest(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.guest.silent = true
	g.wantResult(api.ReasonFilesStale, "the guest does not report its files: no answer")
	for range 16 {
		assert.Eventually(t, "the work to wait", func(testing.TB) error { return assert.ErrorUnless(g.clock.HasWaiters(), "it does not") })
		g.clock.Step(period)
	}
	g.guest.mu.Lock()
	defer g.guest.mu.Unlock()
	assert.True(t, g.guest.looks <= 8, "in 16 periods it was asked %d times", g.guest.looks)
	assert.True(t, g.versions.Load()+g.contents.Load() == 0, "the API was read")
}

// TestReads checks that VirtualMachines of a namespace share what is read, that content is read only after a change, and
// content that cannot be used only once.
func TestReads(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.wantResult(api.ReasonFilesCurrent, "")
	looks := func() int {
		g.guest.mu.Lock()
		defer g.guest.mu.Unlock()
		return g.guest.looks
	}
	for n := range 50 {
		vm := g.vm.DeepCopy()
		vm.Name = fmt.Sprint("vm-", n)
		g.syncer.Check(vm, g.observed)
	}
	assert.Eventually(t, "looks at all", func(testing.TB) error { return assert.ErrorUnless(looks() >= 51, "%d looks", looks()) })
	contents, versions, before := g.contents.Load(), g.versions.Load(), looks()
	assert.Eventually(t, "looks at all", func(testing.TB) error {
		g.clock.Step(period / 4)
		return assert.ErrorUnless(looks() >= before+3*51, "%d looks", looks())
	})
	read := g.versions.Load() - versions
	assert.True(t, read > 0 && read <= 40, "%d versions were read for %d looks at two objects each", read, looks()-before)
	assert.Equal(t, "contents read without a change", g.contents.Load(), contents)
	g.setSecret(map[string][]byte{"key": make([]byte, 1<<20+1)})
	g.wantResult(api.ReasonFilesUnavailable, "at most 1048576 bytes")
	before = looks()
	assert.Eventually(t, "looks at all", func(testing.TB) error {
		g.clock.Step(period / 4)
		return assert.ErrorUnless(looks() >= before+3*51, "%d looks", looks())
	})
	read = g.contents.Load() - contents
	assert.True(t, read <= 52, "the Secret that is too large was read %d times for 51 VirtualMachines", read)
}

// TestReadRate checks that at most maxReads reads begin in readTime, and that a namespace with many does not make
// another one wait for all of them.
func TestReadRate(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	const objects = 100
	for n := range objects {
		vm := g.vm.DeepCopy()
		vm.Name = fmt.Sprint("vm-", n)
		vm.Spec.Files = vm.Spec.Files[:1]
		vm.Spec.Files[0].Secret = &api.SecretFiles{SecretName: fmt.Sprint("secret-", n)}
		g.syncer.Check(vm, g.observed)
	}
	assert.Eventually(t, "reads", func(testing.TB) error { return assert.ErrorUnless(g.versions.Load() > 0, "none") })
	other := g.vm.DeepCopy()
	other.Namespace = "other"
	other.Spec.Files = other.Spec.Files[:1]
	steps := 0
	assert.Eventually(t, "the other namespace's read", func(testing.TB) error {
		if r := g.syncer.Check(other, g.observed); r.Reason != "" {
			return nil
		}
		steps++
		g.clock.Step(readTime)
		return errors.New("it waits")
	})
	read := g.versions.Load()
	assert.True(t, read <= int64(maxReads*(steps+1)), "%d reads after %d times %v", read, steps, readTime)
	assert.True(t, read < objects, "the other namespace waited for all %d reads", read)
}

// TestStalledGuests checks that guests that take no files do not keep the guest of another namespace from getting its.
func TestStalledGuests(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.guest.stalls = map[types.UID]bool{"stalled": true}
	stalled := g.observed
	stalled.Server.UID = "stalled"
	for n := range 4 * maxWrites {
		vm := g.vm.DeepCopy()
		vm.Name = fmt.Sprint("vm-", n)
		g.syncer.Check(vm, stalled)
	}
	assert.Eventually(t, "stalled writes", func(testing.TB) error {
		g.clock.Step(readTime)
		g.guest.mu.Lock()
		defer g.guest.mu.Unlock()
		return assert.ErrorUnless(g.guest.stalled > maxWrites/2, "%d", g.guest.stalled)
	})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "one"}, Data: map[string][]byte{"key": []byte("other")}}
	assert.NoError(t, g.api.Create(t.Context(), secret))
	other := g.vm.DeepCopy()
	other.Namespace = "other"
	other.Spec.Files = other.Spec.Files[:1]
	g.syncer.Check(other, g.observed)
	assert.Eventually(t, "the other guest's files", func(testing.TB) error {
		g.clock.Step(readTime)
		g.guest.mu.Lock()
		defer g.guest.mu.Unlock()
		files := g.guest.has["/one"].Files
		return assert.ErrorUnless(len(files) == 1 && files[0].Data.Reveal() == "other" && g.guest.stalled > 0, "they wait for %d guests", g.guest.stalled)
	})
}

// TestNoWork checks that nothing is written for a server that does not run or boots, and by a process that may not act.
func TestNoWork(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*rig){
		"stopped":   func(g *rig) { g.observed.Server.State = driver.StateStopped },
		"booting":   func(g *rig) { g.observed.Server.IsBooting = true },
		"no files":  func(g *rig) { g.vm.Spec.Files = nil },
		"unknown":   func(g *rig) { g.observed = inventory.Observation{} },
		"no leader": func(g *rig) { g.syncer.MayAct = func() error { return errors.New("another one leads") } },
	} {
		g := newRig(t)
		change(g)
		for range 3 {
			result := g.syncer.Check(g.vm, g.observed)
			assert.True(t, result == Result{IsPending: name == "no leader"}, "%s: the result is %+v", name, result)
			g.clock.Step(period)
		}
		g.syncer.Forget(client.ObjectKeyFromObject(g.vm))
		assert.True(t, len(g.syncer.tasks) == 0 && g.guest.writes == 0, "%s: %d tasks, %d writes", name, len(g.syncer.tasks), g.guest.writes)
	}
}
