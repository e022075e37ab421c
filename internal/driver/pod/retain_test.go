// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/machines"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
)

// newRetained releases a server that runs, and deletes its VirtualMachine.
func (w *world) newRetained(t *testing.T, name string) *server {
	t.Helper()
	s := w.newServer(t, name)
	s.RetainOnDelete, s.Volumes = true, []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}
	s.reach(t, driver.StateRunning)
	assert.NoError(t, s.d.Delete(t.Context(), s.Target, true))
	for name, claim := range s.claims(t) {
		assert.True(t, claim.Labels[objects.LabelRetained] != "" && len(claim.OwnerReferences) == 0, "the PVC of %q is %v", name, claim.ObjectMeta)
	}
	assert.NoError(t, w.vms.Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
	return s
}

// holds reports whether the pod has the finalizer; an error means that it is gone.
func (s *server) holds(t testing.TB) (bool, error) {
	t.Helper()
	p, err := s.w.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), s.base(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return slices.Contains(p.Finalizers, objects.FinalizerStopped), err
}

// waitPodGone repeats Ensure until there is no pod.
func (s *server) waitPodGone(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "the pod of "+s.Name+" is gone", func(t testing.TB) error {
		_, err := s.ensure(t)
		if _, gone := s.holds(t); gone == nil {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

// release removes finalizers of released pods that have ended, as each sweep does.
func (s *server) release(t testing.TB) {
	t.Helper()
	assert.Eventually(t, "released pods are looked at", func(t testing.TB) error {
		err := s.d.ReleaseEnded(t.Context())
		if apierrors.IsConflict(err) { // a kubelet has changed one
			return err
		}
		assert.NoError(t, err)
		return nil
	})
}

// TestRetained checks that pods that were released hold on until their end is proven, and no
// longer, whether somebody deletes them or not.
func TestRetained(t *testing.T) {
	t.Parallel()
	w := newIsolatedWorld(t)
	s, ends := w.newRetained(t, "deleted"), w.newRetained(t, "ends")
	s.release(t)
	for _, r := range []*server{s, ends} {
		held, err := r.holds(t)
		assert.Require(t, held && err == nil, "a pod that runs has lost its finalizer: %v", err)
	}

	w.kubelet.Lock() // the node does not answer
	err := w.kube.CoreV1().Pods(s.Namespace).Delete(t.Context(), s.base(), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	s.release(t)
	held, gone := s.holds(t)
	w.kubelet.Unlock()
	assert.True(t, err == nil && held && gone == nil, "a pod that was deleted by force is held: %v, %v, %v", held, gone, err)

	assert.NoError(t, w.kubelet.Finish(t.Context(), ends.pod(t)))
	assert.Eventually(t, "the pods have lost their finalizers", func(t testing.TB) error {
		s.release(t)
		held, err := ends.holds(t)
		if _, gone := s.holds(t); held || gone == nil {
			return fmt.Errorf("the pod that has ended is held: %v; the other is gone: %w", held, errors.Join(gone, err))
		}
		return err
	})
	for _, r := range []*server{s, ends} {
		left := r.claims(t)
		assert.True(t, len(left) == 2 && left["data"].DeletionTimestamp == nil, "the PVCs of %s are %v", r.Name, left)
	}
}

// TestEndedPodOfAGoneVM checks that the pod of a VirtualMachine that is gone, whose data is left, loses its
// finalizer once its end is proven, and that what is left can be removed then.
func TestEndedPodOfAGoneVM(t *testing.T) {
	t.Parallel()
	w := newIsolatedWorld(t)
	s := w.newServer(t, "web")
	s.reach(t, driver.StateRunning)
	assert.NoError(t, w.vms.Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
	assert.Eventually(t, "its pod has ended", func(t testing.TB) error {
		got := s.list(t)
		return assert.ErrorUnless(got.State == driver.StateStopped, "it is %s", got.State)
	})
	s.release(t)
	held, err := s.holds(t)
	assert.Require(t, held && err == nil, "without a word about its VirtualMachine the pod is released: %v", err)
	assert.Eventually(t, "the pod is gone", func(t testing.TB) error {
		if err := s.d.ReleaseEnded(t.Context(), s.UID); err != nil {
			return err
		}
		if held, gone := s.holds(t); gone == nil {
			return fmt.Errorf("it is there, with its finalizer: %t", held)
		}
		return nil
	})
	left := s.claims(t)
	assert.True(t, len(left) == 1, "the PVCs are %v", left)
	s.deleteAll(t)
}

// TestRetainedByLabel checks that the label alone, which a tenant can set, removes no finalizer of a
// pod whose VirtualMachine exists: its end has to be recorded first.
func TestRetainedByLabel(t *testing.T) {
	t.Parallel()
	w := newIsolatedWorld(t)
	s := w.newServer(t, "web")
	s.d.reader.Owner = s.owner
	s.reach(t, driver.StateRunning)
	assert.Eventually(t, "the label", func(t testing.TB) error {
		p := s.pod(t)
		p.Labels[objects.LabelRetained] = "true"
		_, err := w.kube.CoreV1().Pods(s.Namespace).Update(t.Context(), p, metav1.UpdateOptions{})
		return err
	})
	assert.NoError(t, w.kubelet.Finish(t.Context(), s.pod(t)))
	s.release(t)
	held, err := s.holds(t)
	assert.True(t, held && err == nil, "the pod has lost its finalizer: %v", err)
	s.reach(t, driver.StateRunning)
	s.deleteAll(t)
}

// TestSlowKubelet checks that a pod whose end is proven keeps its name until its kubelet has removed
// it, and that neither a restart nor a deletion takes it for another's.
func TestSlowKubelet(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}
	w.kubelet.Set(func(k *podtest.Kubelet) { k.IsSlow = true })
	first := s.reach(t, driver.StateRunning)
	s.turn(t, driver.PowerOff, driver.StateStopped)
	s.waitForgotten(t)
	s.d, s.Power = w.open(t), driver.PowerOn
	for range 3 {
		assert.ErrorIs(t, "the restart", assert.ErrorOf(s.ensure(t)), nil)
	}
	got := s.list(t)
	assert.True(t, got.State == driver.StateStopped && got.Exit != nil && !got.NeedsEnsure && got.Run == first.Run, "meanwhile it is %+v", got)
	assert.True(t, got.IsLeaving && strings.Contains(got.Progress, "its kubelet has yet to remove it"), "it is not said that the last run is leaving: %+v", got)
	w.kubelet.Set(func(k *podtest.Kubelet) { k.IsSlow = false })
	assert.True(t, s.reach(t, driver.StateRunning).Run != first.Run, "the run has not changed")

	w.kubelet.Set(func(k *podtest.Kubelet) { k.IsSlow = true })
	s.turn(t, driver.PowerOff, driver.StateStopped)
	assert.Eventually(t, "the removal waits", func(t testing.TB) error {
		if err := s.d.Delete(t.Context(), s.Target, false); err != nil {
			return err
		}
		if got := s.list(t); got.State != driver.StateRemoving {
			return fmt.Errorf("it is %s", got.State)
		}
		return nil
	})
	w.kubelet.Set(func(k *podtest.Kubelet) { k.IsSlow = false })
	s.deleteAll(t)
	s.wantGone(t)
}

// waitForgotten repeats Ensure, as long as the driver asks for it, until the pod has lost its finalizer.
func (s *server) waitForgotten(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "the end is recorded", func(t testing.TB) error {
		if held, err := s.holds(t); !held {
			return err
		}
		got := s.list(t)
		assert.Require(t, got.NeedsEnsure, "nothing is asked for: %+v", got)
		_, err := s.ensure(t)
		return fmt.Errorf("the pod has its finalizer: %w", err)
	})
}

// TestSeed checks that all replicas have one seed, and that one which cannot be used is named.
func TestSeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secrets := w.kube.CoreV1().Secrets(w.namespace)
	newMachines := func() *machines.Machines { return &machines.Machines{Secrets: secrets, Clock: clock.RealClock{}} }
	at := machines.Machine{UID: "vm", Pod: "pod", Nonce: "nonce", Address: podtest.Unreachable + ":1"}
	_, _, err := newMachines().Sample(t.Context(), []machines.Machine{at})
	assert.True(t, apierrors.IsNotFound(err), "without a seed a sample returns %v", err)
	_, err = secrets.Get(t.Context(), machines.SeedName, metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "a sample made the seed: %v", err)
	var replicas sync.WaitGroup
	for range 8 {
		replicas.Go(func() {
			end, err := newMachines().NewEnd(t.Context(), "vm", "nonce")
			assert.True(t, err == nil && len(end) == 3, "a replica has %d files, %v", len(end), err)
		})
	}
	replicas.Wait()
	assert.NoError(t, secrets.Delete(t.Context(), machines.SeedName, metav1.DeleteOptions{}))
	damaged := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: machines.SeedName}, Data: map[string][]byte{"seed": []byte("short")}}
	assert.NoError(t, assert.ErrorOf(secrets.Create(t.Context(), damaged, metav1.CreateOptions{})))
	assert.ErrorIs(t, "a damaged seed", assert.ErrorOf(newMachines().NewEnd(t.Context(), "vm", "nonce")), driver.ErrRetry, "seed has 5 bytes and must have 32")
}

// TestEndedPodWithoutASeed checks that a pod that was deleted by others loses its finalizer once it has ended,
// although the Secret that the next one needs cannot be used.
func TestEndedPodWithoutASeed(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.UserData = driver.NewSecret("#cloud-config\n")
	s.reach(t, driver.StateRunning)
	damaged := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: machines.SeedName}, Data: map[string][]byte{"seed": []byte("short")}}
	assert.NoError(t, assert.ErrorOf(w.kube.CoreV1().Secrets(w.namespace).Create(t.Context(), damaged, metav1.CreateOptions{})))
	s.d = w.open(t)
	seeds := s.d.machines.Secrets
	s.d.machines.Secrets = w.kube.CoreV1().Secrets(w.namespace)
	assert.NoError(t, w.kube.CoreV1().Pods(s.Namespace).Delete(t.Context(), s.base(), metav1.DeleteOptions{}))
	assert.Eventually(t, "the pod is gone", func(t testing.TB) error {
		_, err := s.ensure(t)
		if _, gone := s.holds(t); gone == nil {
			return fmt.Errorf("it is there: %w", err)
		}
		assert.ErrorIs(t, "Ensure", err, driver.ErrRetry, "seed has 5 bytes")
		return nil
	})
	s.d.machines.Secrets = seeds
	s.reach(t, driver.StateRunning)
	s.deleteAll(t)
}

// TestConcurrentChange has others change the PVC just before the driver does. Its call decides again, and
// makes its change unless that was a later leader.
func TestConcurrentChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		annotation string
		want       error
	}{"controller": {"example.com/x", nil}, "leader": {objects.AnnotationEpoch, driver.ErrRetry}} {
		s := w.newServer(t, name)
		patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: "7"}}}`, c.annotation)
		var once sync.Once
		s.d = openAs(t, w.intercept(func(r *http.Request) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/persistentvolumeclaims/"+s.base()) {
				once.Do(func() {
					if _, err := w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).Patch(r.Context(), s.base(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
						t.Error(err)
					}
				})
			}
		}, nil), clusterID)
		assert.ErrorIs(t, "after a change by another "+name, assert.ErrorOf(s.ensure(t)), c.want)
		now := s.claims(t)[objects.RootDisk].Annotations
		assert.True(t, now[c.annotation] == "7" && (now[objects.AnnotationRun] != "") == (c.want == nil),
			"after a change by another %s the annotations are %v", name, now)
		s.Epoch = 7
		s.deleteAll(t)
	}
}

// TestRetainIsRepeated checks that a release that was cut short does the rest when it is repeated, for a
// server that has lost the PVC of its root disk.
func TestRetainIsRepeated(t *testing.T) {
	t.Parallel()
	_, s := newServer(t)
	s.Volumes = []driver.Volume{{Name: "a", SizeBytes: 1 << 20}, {Name: "b", SizeBytes: 1 << 20}}
	s.reach(t, driver.StateRunning)
	for _, volume := range []string{"a", "b"} {
		found, err := s.d.reader.Find(t.Context(), s.Target, true)
		assert.NoError(t, err)
		delete(found.Claims, objects.RootDisk)
		found.Claims[volume].ResourceVersion = "1" // others have changed it
		err = writer{server: found, client: s.d.Client}.retainServer(t.Context())
		assert.True(t, apierrors.IsConflict(err), "with a conflict about %s the release returns %v", volume, err)
		if again, err := s.d.reader.Find(t.Context(), s.Target, true); err != nil {
			t.Fatal(err)
		} else if delete(again.Claims, objects.RootDisk); again.IsRetained() {
			t.Errorf("after a conflict about %s the server counts as released", volume)
		}
	}
	s.deleteAll(t)
}
