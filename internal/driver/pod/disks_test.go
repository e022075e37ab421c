// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
)

// claims returns the PVCs of a server by the names of their disks.
func (s *server) claims(t testing.TB) map[string]corev1.PersistentVolumeClaim {
	t.Helper()
	listed, err := s.w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	all := map[string]corev1.PersistentVolumeClaim{}
	for _, c := range listed.Items {
		if name, ok := strings.CutPrefix(c.Name, s.base()); ok && c.Labels[objects.LabelUID] == string(s.UID) {
			all[strings.TrimPrefix(name, "-")] = c
		}
	}
	return all
}

// awaitRest waits until the volumes have grown, and calls Ensure as long as the driver asks for it.
func (s *server) awaitRest(t *testing.T) {
	t.Helper()
	assert.Eventually(t, s.Name+" is settled", func(t testing.TB) error {
		for name, c := range s.claims(t) {
			if requested, actual := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]; requested.Cmp(actual) != 0 {
				return fmt.Errorf("the volume of %q has %s", name, actual.String())
			}
		}
		if s.list(t).NeedsEnsure {
			return fmt.Errorf("the driver asks for an Ensure: %w", assert.ErrorOf(s.ensure(t)))
		}
		return nil
	})
}

// fixedBytes is the size of the boot guest's image.
const fixedBytes = 1 << 20

// TestVolumes follows the disks of a real machine: through growth, restarts, and the removal of a
// volume from the spec.
func TestVolumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.newNode(t)
	s := w.newServer(t, "web")
	s.Volumes = []driver.Volume{
		{Name: "data", SizeBytes: 2 << 20},
		{Name: "fixed", SizeBytes: 1 << 20, ReadOnly: true, Image: &driver.Image{Source: "oci://registry.example/data:1"}},
	}
	s.reach(t, driver.StateRunning)
	made := s.claims(t)
	assert.Require(t, len(made) == 3 && len(made["data"].OwnerReferences) == 0, "the PVCs are %v", made)
	s.usage(t)
	s.RootDiskBytes, s.Volumes[0].SizeBytes = 8<<20, 4<<20
	s.reach(t, driver.StateRunning)
	s.awaitRest(t)
	for name, want := range map[string]int64{"": 8 << 20, "data": 4 << 20} {
		claim := s.claims(t)[name]
		got := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		assert.True(t, got.Cmp(objects.ClaimSize(want)) == 0, "the PVC of %q has %s", name, got.String())
	}
	s.wantSizes(t, n, map[string]int64{launch.RootNode: 8 << 20, launch.VolumeNode("data"): 4 << 20, launch.VolumeNode("fixed"): fixedBytes})

	s.Volumes = s.Volumes[1:]
	got := s.reach(t, driver.StateRunning)
	assert.True(t, slices.Equal(got.Pending, []string{"volumes"}), "without a volume %v waits for a restart", got.Pending)
	s.restart(t)
	if p := s.pod(t); strings.Contains(p.Annotations[objects.AnnotationMachine], "/volumes/data") {
		t.Errorf("a volume that was removed is described: %s", p.Annotations[objects.AnnotationMachine])
	}
	s.Volumes = append(s.Volumes, driver.Volume{Name: "data", SizeBytes: 4 << 20})
	s.restart(t)
	now := s.claims(t)
	assert.True(t, now["data"].UID == made["data"].UID && now[""].UID == made[""].UID, "the PVCs were %v and are %v", made, now)
	s.deleteAll(t)
	s.wantGone(t)
}

// TestClaimsOfAFailure checks that the UIDs of PVCs are recorded by a call that fails after it has found
// them.
func TestClaimsOfAFailure(t *testing.T) {
	t.Parallel()
	_, s := newServer(t)
	s.record(t)
	c := s.converge(t)
	assert.NoError(t, c.claims.ensureClaim(t.Context(), objects.Disk{Name: objects.RootDisk, Bytes: s.RootDiskBytes}))
	failure := errors.New("boom")
	first, ok := errors.AsType[*driver.RecordFirstError](c.records.recordClaims(failure))
	assert.Require(t, ok, "nothing is to be recorded")
	s.Objects = first.Objects
	assert.Equal(t, "the record has the UID", s.recordOf(objects.KindClaim).UID, c.server.Claims.Root().UID)
	assert.ErrorIs(t, "after the record the failure", s.converge(t).records.recordClaims(failure), failure)
	s.deleteAll(t)
}

// wantSizes checks what the disks of the machine have for its guest.
func (s *server) wantSizes(t *testing.T, n *podtest.Node, want map[string]int64) {
	t.Helper()
	m := machine.Machine{Path: n.RunFolder(s.pod(t).UID), Mark: string(s.UID)}
	got, err := machine.Monitor{Executor: m}.DiskSizes(t.Context())
	maps.DeleteFunc(got, func(node string, _ int64) bool { return want[node] == 0 })
	assert.True(t, err == nil && maps.Equal(got, want), "the disks of the guest have %v, %v, want %v", got, err, want)
}

// TestVolumeCannotGrow checks that a storage class that allows no growth keeps nothing else from
// being done, and that no disk is larger than its volume.
func TestVolumeCannotGrow(t *testing.T) {
	t.Parallel()
	_, s := newServer(t)
	s.StorageClassName = new("rigid")
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}
	s.reach(t, driver.StateRunning)
	assert.Eventually(t, "bound PVCs", func(t testing.TB) error {
		for name, c := range s.claims(t) {
			if c.Status.Phase != corev1.ClaimBound {
				return fmt.Errorf("%q is %s", name, c.Status.Phase)
			}
		}
		return nil
	})
	s.Volumes[0].SizeBytes = 1 << 30
	for _, power := range []driver.Power{driver.PowerOn, driver.PowerOff, driver.PowerOn} {
		s.Power = power
		assert.Eventually(t, "the server is "+string(power), func(t testing.TB) error {
			_, err := s.ensure(t)
			if got := s.list(t); (got.State == driver.StateRunning) != (power == driver.PowerOn) {
				return fmt.Errorf("it is %s: %w", got.State, err)
			}
			wantGrowthError(t, power, err)
			return nil
		})
	}
	if p := s.pod(t); strings.Contains(p.Annotations[objects.AnnotationMachine], fmt.Sprint(1<<30)) {
		t.Errorf("a disk is larger than its volume: %s", p.Annotations[objects.AnnotationMachine])
	}
	s.deleteAll(t)
}

func wantGrowthError(t testing.TB, power driver.Power, err error) {
	t.Helper()
	if power == driver.PowerOn {
		assert.ErrorIs(t, "growing it", err, driver.ErrRetry, "spec.volumes[data].size: the PVC has ")
		assert.ErrorIs(t, "growing it", err, driver.ErrRetry, "only dynamically provisioned pvc can be resized")
	}
}

// TestForeignClaim checks that a PVC that a tenant has made under the name of a volume is neither
// used nor removed, and that nothing else waits for it.
func TestForeignClaim(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.reach(t, driver.StateRunning)
	theirs := s.d.Objects.NewClaim(s.ServerSpec, objects.Disk{Name: "data", Bytes: 1 << 20}, "theirs")
	theirs, err := w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).Create(t.Context(), theirs, metav1.CreateOptions{})
	assert.NoError(t, err)
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}
	s.reach(t, driver.StateRunning)
	s.turn(t, driver.PowerOff, driver.StateStopped)
	s.Power = driver.PowerOn
	s.wantRefusal(t, driver.ReasonNameConflict, string(theirs.UID))
	_, err = s.ensure(t)
	assert.True(t, !strings.Contains(err.Error(), "delete it"), "somebody's data is to be deleted: %v", err)
	if now := s.claims(t)["data"]; now.UID != theirs.UID || now.ResourceVersion != theirs.ResourceVersion && now.Annotations[objects.AnnotationEpoch] != theirs.Annotations[objects.AnnotationEpoch] {
		t.Errorf("the tenant's PVC has become %v", now)
	}
	assert.NoError(t, w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(t.Context(), theirs.Name, metav1.DeleteOptions{}))
	s.reach(t, driver.StateRunning)

	// One that is gone is never made again.
	assert.NoError(t, w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(t.Context(), theirs.Name, metav1.DeleteOptions{}))
	s.turn(t, driver.PowerOff, driver.StateStopped)
	assert.Eventually(t, "the PVC is gone", func(t testing.TB) error {
		_, err := s.ensure(t)
		if left, ok := s.claims(t)["data"]; ok {
			return fmt.Errorf("%s is there: %w", left.Name, err)
		}
		return nil
	})
	s.Power = driver.PowerOn
	s.wantRefusal(t, "VolumeLost", "volume data, is gone")
	s.deleteAll(t)
}

// TestStopWithoutDisk checks that a guest is shut down, and its pod released, although the PVC of its root disk
// was removed.
func TestStopWithoutDisk(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.reach(t, driver.StateRunning)
	claims := w.kube.CoreV1().PersistentVolumeClaims(s.Namespace)
	root := s.claims(t)[""]
	assert.NoError(t, claims.Delete(t.Context(), root.Name, metav1.DeleteOptions{}))
	if _, err := claims.Patch(t.Context(), root.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	s.wantRefusal(t, "VolumeLost", "root disk, is gone")
	s.Power = driver.PowerOff
	s.waitPodGone(t)
	s.deleteAll(t)
}

// TestDeletedClaim checks that a PVC that somebody deletes while its guest runs is reported at once, and that
// neither a restart nor a start after an end completes the loss. A user may still stop the server.
func TestDeletedClaim(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	run := s.reach(t, driver.StateRunning).Run
	root := s.claims(t)[""]
	assert.NoError(t, w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(t.Context(), root.Name, metav1.DeleteOptions{}))
	assert.Eventually(t, "the deletion is reported", func(t testing.TB) error {
		if got := s.list(t); got.State != driver.StateRunning || driver.ReasonOf(got.Err) != "VolumeDeleting" {
			return fmt.Errorf("the server is %s: %w", got.State, got.Err)
		}
		return nil
	})
	s.reach(t, driver.StateRunning)
	s.RestartRun = run
	s.wantRefusal(t, "VolumeDeleting", root.Name+" was deleted")
	s.RestartRun = ""
	assert.NoError(t, w.kubelet.EndPod(t.Context(), s.pod(t), 1, ""))
	s.wantRefusal(t, "VolumeDeleting", root.Name+" was deleted")
	_, kept := s.claims(t)[""]
	assert.True(t, kept && s.pod(t).UID == types.UID(run), "the PVC or its pod was removed")
	s.turn(t, driver.PowerOff, driver.StateStopped)
	s.deleteAll(t)
}

// wantRefusal repeats Ensure until it fails for a reason, and checks the text.
func (s *server) wantRefusal(t *testing.T, reason, message string) {
	t.Helper()
	assert.Eventually(t, "a refusal because of "+reason, func(t testing.TB) error {
		_, err := s.ensure(t)
		if driver.ReasonOf(err) != reason {
			return fmt.Errorf("Ensure returns %w", err)
		}
		assert.ErrorIs(t, reason, err, driver.ErrRetry, message)
		return nil
	})
}

// TestCopiedClaims deletes a server whose PVCs were deleted and restored from a backup, one of them with its
// labels alone. The restored ones are neither used nor deleted.
func TestCopiedClaims(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20}}
	s.reach(t, driver.StateRunning)
	s.turn(t, driver.PowerOff, driver.StateStopped)
	s.waitPodGone(t)
	claims := w.kube.CoreV1().PersistentVolumeClaims(s.Namespace)
	copies := map[string]corev1.PersistentVolumeClaim{}
	for name, c := range s.claims(t) {
		assert.NoError(t, claims.Delete(t.Context(), c.Name, metav1.DeleteOptions{}))
		c.ResourceVersion, c.UID, c.DeletionTimestamp = "", "", nil
		if name == "data" {
			c.Annotations = nil
		}
		assert.Eventually(t, c.Name+" is restored", func(t testing.TB) error {
			made, err := claims.Create(t.Context(), &c, metav1.CreateOptions{})
			if err == nil {
				copies[name] = *made
			}
			return err
		})
	}
	s.Power = driver.PowerOn
	s.wantRefusal(t, "VolumeLost", "restored from a backup")
	if all, err := s.d.List(t.Context()); err != nil || slices.ContainsFunc(all, func(other driver.Server) bool { return other.UID == s.UID }) {
		t.Errorf("copies are listed as a server: %+v, %v", all, err)
	}
	s.deleteAll(t)
	for name, c := range s.claims(t) {
		assert.True(t, c.UID == copies[name].UID && c.DeletionTimestamp == nil && c.Labels[objects.LabelRetained] == "", "the copy of %q is %+v", name, c.ObjectMeta)
	}
	assert.Equal(t, "copies are left", len(s.claims(t)), 2)
}

// takeLabels removes all labels from the pod of a server, if it has one, and from its PVCs.
func (s *server) takeLabels(t *testing.T) {
	t.Helper()
	patch := []byte(`{"metadata":{"labels":null}}`)
	for _, c := range s.claims(t) {
		assert.NoError(t, assert.ErrorOf(s.w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).Patch(t.Context(), c.Name, types.MergePatchType, patch, metav1.PatchOptions{})))
	}
	if _, err := s.w.kube.CoreV1().Pods(s.Namespace).Patch(t.Context(), s.base(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// wantLabels checks that PVCs have the labels that they had.
func (s *server) wantLabels(t *testing.T, earlier map[string]corev1.PersistentVolumeClaim) {
	t.Helper()
	now := s.claims(t)
	for name, c := range earlier {
		assert.True(t, maps.Equal(now[name].Labels, c.Labels) && now[name].UID == c.UID, "the PVC %q has %v, and had %v", name, now[name].Labels, c.Labels)
	}
}

// TestRemovedLabels checks that a pod and PVCs that have lost the labels of their server get them back, while it
// runs, as it stops, and while it is off, and that nothing is taken for lost or foreign meanwhile.
func TestRemovedLabels(t *testing.T) {
	t.Parallel()
	_, s := newServer(t)
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}
	run := s.reach(t, driver.StateRunning).Run
	before := s.claims(t)
	s.takeLabels(t)
	got, err := s.ensure(t)
	assert.True(t, err == nil && got.State == driver.StateRunning && got.Run == run, "the server is %s, run %s, %v, and was run %s", got.State, got.Run, err, run)
	s.wantLabels(t, before)
	p := s.pod(t)
	assert.True(t, p.Labels[objects.LabelUID] == string(s.UID), "the pod has the labels %v", p.Labels)
	s.takeLabels(t)
	s.turn(t, driver.PowerOff, driver.StateStopped)
	s.waitPodGone(t)
	s.wantLabels(t, before)
	s.takeLabels(t)
	got, err = s.ensure(t)
	assert.True(t, err == nil && got.State == driver.StateStopped && got.Run == run, "the server is %s, run %s, %v", got.State, got.Run, err)
	s.wantLabels(t, before)
	s.turn(t, driver.PowerOn, driver.StateRunning)
	s.deleteAll(t)
	s.wantGone(t)
}
