// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sigsyaml "sigs.k8s.io/yaml"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
	"cloudnative.tw/drover/test/tier"
)

const (
	mountedImage = "drover.test/mounted:1"
	// mountedClass is a StorageClass whose volumes the test can read even after their claims are deleted.
	mountedClass = "mounted"
)

// TestPodDeletion deletes guests in all ways of Kubernetes. Each guest has a file system mounted, and
// its disk shows whether the file system was unmounted.
func TestPodDeletion(t *testing.T) {
	tier.Full(t, "it takes minutes; TestPodDriver keeps a deletion, and the tests of driver pod the ways of deletion with a simulated kubelet")
	w := newPodWorld(t)
	importMountedGuest(t)
	t.Run("cascade", func(t *testing.T) { testCascade(t, w) })
	t.Run("namespace", func(t *testing.T) { testNamespaceDeletion(t, w) })
	t.Run("applied again", func(t *testing.T) { testAppliedAgain(t, w) })
	w.checkNoGuestLeft(t)
}

// importMountedGuest imports the image of a guest whose disk has a file system on all nodes.
func importMountedGuest(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	linux, disk := framework.BuildLinuxGuest(t, dir), filepath.Join(dir, "disk.img")
	out, err := exec.CommandContext(t.Context(), "/sbin/mke2fs", "-q", "-t", "ext4", disk, "32M").CombinedOutput()
	assert.Require(t, err == nil, "mke2fs: %v\n%s", err, out)
	importImage(t, shared, mountedImage, map[string]string{"vmlinuz": linux.Kernel, "initrd": linux.Initrd, "disk/disk.img": disk})
}

// mountedGuest is a guest on a separate volume.
type mountedGuest struct {
	*guest

	volume, disk string
}

// createMounted creates guests and waits until all of them answer.
func (w *podWorld) createMounted(t *testing.T, names ...string) (all []*mountedGuest) {
	t.Helper()
	for _, name := range names {
		addSharedVolume(t, mountedClass, "mounted-"+name)
		all = append(all, &mountedGuest{guest: w.requestGuest(t, name, useMounted)})
	}
	for _, g := range all {
		g.waitMounted(t)
	}
	return all
}

func useMounted(spec *api.VirtualMachineSpec) {
	spec.StorageClassName, spec.Image.Source = new(mountedClass), "oci://"+mountedImage
	// The deletion of a namespace checks its pods again after half of this period.
	spec.ShutdownGracePeriodSeconds = new(int64(20))
}

// waitMounted waits until the guest, which has its file system mounted, answers.
func (g *mountedGuest) waitMounted(t *testing.T) {
	t.Helper()
	g.waitRun(t, "")
	g.volume = g.claim(t).Spec.VolumeName
	g.disk = filepath.Join(shared.Dir, "volume-"+g.volume, "root", "disk")
	g.checkMounted(t, true)
}

// checkMounted checks whether the file system on the guest's disk is mounted, or was left mounted.
func (g *mountedGuest) checkMounted(t *testing.T, want bool) {
	t.Helper()
	const superblock, magicAt, magic, incompatAt, needsRecovery = 1024, 0x38, 0xef53, 0x60, 0x4
	content, err := os.ReadFile(g.disk)
	assert.Require(t, err == nil && len(content) >= 2*superblock && binary.LittleEndian.Uint16(content[superblock+magicAt:]) == magic,
		"the disk of %s, with %d bytes, lacks a file system: %v", g.name, len(content), err)
	assert.Equal(t, "the file system of "+g.name+" is mounted", binary.LittleEndian.Uint32(content[superblock+incompatAt:])&needsRecovery != 0, want)
}

// checkDeleted checks that the guest has shut down and only its volume is left.
func (g *mountedGuest) checkDeleted(t *testing.T) {
	t.Helper()
	g.waitGone(t)
	g.checkNothingLeft(t)
	g.checkMounted(t, false)
}

// testCascade deletes VirtualMachines with each propagation policy.
func testCascade(t *testing.T, w *podWorld) {
	guests := w.createMounted(t, "foreground", "background", "orphan")
	for _, g := range guests {
		framework.RunKubectl(t, shared.Kubeconfig, "-n", g.namespace, "delete", "vm", g.name, "--cascade="+g.name, "--wait=false")
	}
	for _, g := range guests {
		g.checkDeleted(t)
	}
	testOrphansOfStopped(t, w)
}

// testOrphansOfStopped deletes a VirtualMachine that is off with propagation policy Orphan. The objects that
// Drover has created for it are deleted nevertheless.
func testOrphansOfStopped(t *testing.T, w *podWorld) {
	g := w.requestGuest(t, "orphan-off", func(spec *api.VirtualMachineSpec) {
		useMounted(spec)
		spec.Action, spec.EvictionPolicy = api.ActionStopped, api.EvictionBlock
	})
	g.waitFor(t, users.CheckApplied)
	framework.RunKubectl(t, shared.Kubeconfig, "-n", g.namespace, "delete", "vm", g.name, "--cascade=orphan", "--wait=false")
	g.waitGone(t)
	g.checkNothingLeft(t)
}

// testNamespaceDeletion deletes a namespace with VirtualMachines. Their pods are deleted first. As long
// as one of the pods exists, no other objects are deleted, and the other pod is not created again.
func testNamespaceDeletion(t *testing.T, w *podWorld) {
	w = w.newNamespace(t, "leaving")
	guests := w.createMounted(t, "kept", "refused")
	kept, refused := guests[0], guests[1]
	release := keepPod(t, kept.namespace, kept.pod(t).Name)
	assert.NoError(t, shared.Client.CoreV1().Namespaces().Delete(t.Context(), w.namespace, metav1.DeleteOptions{}))
	refused.waitFor(t, framework.HasPhase(api.PhaseFailed, api.ReasonNamespaceTerminating))
	for _, g := range guests {
		assert.True(t, g.waitFor(t).DeletionTimestamp == nil, "%s is deleted while a pod exists", g.name)
		g.checkMounted(t, false)
	}
	release()
	assert.Eventually(t, "the namespace is gone", func(t testing.TB) error {
		namespace, err := shared.Client.CoreV1().Namespaces().Get(t.Context(), w.namespace, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("it still exists: %+v, %w", namespace.Status, err)
		}
		return nil
	})
	for _, g := range guests {
		g.checkDeleted(t)
	}
}

// keptFinalizer keeps the object of a deleted pod until the test has seen how the pod ended.
const keptFinalizer = "drover.test/kept"

// keepPod keeps the object of a pod after the pod has ended, until release is called.
func keepPod(t *testing.T, namespace, name string) (release func()) {
	t.Helper()
	ctx, pods := context.WithoutCancel(t.Context()), shared.Client.CoreV1().Pods(namespace)
	update := func(change func(finalizers []string) []string) error {
		return framework.RetryOnConflict(func() error {
			pod, err := pods.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			pod.Finalizers = change(pod.Finalizers)
			_, err = pods.Update(ctx, pod, metav1.UpdateOptions{})
			return err
		})
	}
	assert.NoError(t, update(func(all []string) []string { return append(all, keptFinalizer) }))
	release = func() {
		err := update(func(all []string) []string {
			return slices.DeleteFunc(all, func(f string) bool { return f == keptFinalizer })
		})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Cleanup(release)
	return release
}

// testAppliedAgain applies the YAML of a deleted VirtualMachine again: without the fields that the
// cluster has added, and with them. The new VirtualMachine uses no objects of the old one.
func testAppliedAgain(t *testing.T, w *podWorld) {
	g := w.createMounted(t, "again")[0]
	for _, isStripped := range []bool{true, false} {
		before, saved := g, saveManifest(t, g.guest, isStripped)
		objects := g.findObjects(t)
		g.delete(t)
		g.checkDeleted(t)
		addSharedVolume(t, mountedClass, fmt.Sprintf("mounted-again-%t", isStripped))
		framework.RunKubectl(t, shared.Kubeconfig, "apply", "-f", saved)
		g = &mountedGuest{guest: w.findGuest(t, g.name)}
		g.waitMounted(t)
		assert.True(t, g.uid != before.uid && g.volume != before.volume,
			"UID %s on volume %s became UID %s on volume %s", before.uid, before.volume, g.uid, g.volume)
		for name := range g.findObjects(t) {
			assert.True(t, !objects[name], "the VirtualMachine that was applied again uses %s of the deleted one", name)
		}
		before.checkNothingLeft(t)
		before.checkMounted(t, false)
	}
	g.delete(t)
	g.checkDeleted(t)
}

// saveManifest writes the manifest of a VirtualMachine to a file, with or without the fields that users do not set.
func saveManifest(t *testing.T, g *guest, isStripped bool) string {
	t.Helper()
	out, _ := framework.RunKubectl(t, shared.Kubeconfig, "-n", g.namespace, "get", "vm", g.name, "-o", "yaml")
	var manifest map[string]any
	assert.NoError(t, sigsyaml.Unmarshal([]byte(out), &manifest))
	metadata, _ := manifest["metadata"].(map[string]any)
	delete(metadata, "resourceVersion") // an object with a resourceVersion cannot be created
	if isStripped {
		manifest["metadata"] = map[string]any{"name": g.name, "namespace": g.namespace}
		delete(manifest, "status")
	}
	content, err := sigsyaml.Marshal(manifest)
	path := filepath.Join(t.TempDir(), "vm.yaml")
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	assert.NoError(t, err)
	return path
}

// findObjects returns the names, nonces and UIDs of objects in the status.
func (g *guest) findObjects(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, o := range g.waitFor(t, framework.IsActive).Status.Objects {
		for _, name := range []string{o.Name, o.Nonce, o.UID} {
			assert.True(t, name != "", "%s has an object without name, nonce or UID: %+v", g.name, o)
			found[o.Kind+" "+name] = true
		}
	}
	return found
}
