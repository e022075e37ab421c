// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// instance is what there is of one server.
type instance struct {
	driver *Driver
	// key has the namespace, and the name of the pod and of the root disk's PVC.
	key types.NamespacedName
	uid types.UID
	vm  string
	// pod and root are nil if there is none.
	pod  *corev1.Pod
	root *corev1.PersistentVolumeClaim
	// names are the volumes to read, and volumes their PVCs.
	names   []string
	volumes map[string]*corev1.PersistentVolumeClaim
	// asserted is the pod whose machine is off by the word of an operator, as known when the
	// objects were read.
	asserted types.UID
	// node is the pod's node, read where such a word matters; nil if it is not there.
	node *corev1.Node
}

// find reads the objects of a server. It returns ErrNotFound if there are none.
func (d *Driver) find(ctx context.Context, t driver.Target) (*instance, error) {
	key, vm, err := d.keyOf(ctx, t)
	if err != nil {
		return nil, err
	}
	i := &instance{driver: d, key: key, uid: t.UID, vm: vm}
	if err := i.read(ctx); err != nil {
		return nil, err
	}
	if err := i.listVolumes(ctx); err != nil {
		return nil, err
	}
	if !i.exists() {
		return nil, driver.Errorf(driver.ErrNotFound, "there is no pod and no PVC of UID %s", t.UID)
	}
	return i, nil
}

// keyOf returns where the objects of a server are: as its owner says, else as its objects say,
// whose labels select them.
func (d *Driver) keyOf(ctx context.Context, t driver.Target) (key types.NamespacedName, vm string, err error) {
	if owner, known := d.ownerOf(t.UID); known {
		key, vm = types.NamespacedName{Namespace: owner.Namespace, Name: baseName(owner.Name, t.UID)}, owner.Name
	} else {
		listed, err := d.listObjects(ctx, t.UID)
		switch {
		case err != nil:
			return key, "", err
		case len(listed) == 0:
			return key, "", driver.Errorf(driver.ErrNotFound, "there is no pod and no PVC of UID %s", t.UID)
		case len(listed) > 1 && t.ID == "":
			return key, "", driver.WithReason(driver.ReasonDuplicate, driver.Errorf(driver.ErrRetry, "%s and %s both claim the UID %s: remove the wrong one", listed[0].id(), listed[1].id(), t.UID))
		}
		n := max(0, slices.IndexFunc(listed, func(i *instance) bool { return i.id() == t.ID }))
		key, vm = listed[n].key, listed[n].vm
	}
	if id := serverID(key.Namespace, key.Name); t.ID != "" && t.ID != id {
		return key, "", driver.Errorf(driver.ErrNotFound, "the server of UID %s is %s, not %s", t.UID, id, t.ID)
	}
	return key, vm, nil
}

func (d *Driver) ownerOf(uid types.UID) (types.NamespacedName, bool) {
	if d.Owner == nil {
		return types.NamespacedName{}, false
	}
	return d.Owner(uid)
}

// read reads the objects again, live. Objects of the names without the labels are foreign, which
// their creation would find.
func (i *instance) read(ctx context.Context) error {
	core := i.driver.Client
	pod, err := core.Pods(i.key.Namespace).Get(ctx, i.key.Name, metav1.GetOptions{})
	if i.pod, err = own(i, pod, err); err != nil {
		return explain("read", kindPod, i.key, err)
	}
	root, err := core.PersistentVolumeClaims(i.key.Namespace).Get(ctx, i.key.Name, metav1.GetOptions{})
	if i.root, err = own(i, root, err); err != nil {
		return explain("read", kindClaim, i.key, err)
	}
	if err := i.readVolumes(ctx, i.names); err != nil {
		return err
	}
	return i.readNode(ctx)
}

// exists reports whether there is any object of the server.
func (i *instance) exists() bool { return i.pod != nil || i.root != nil || len(i.sortedVolumes()) > 0 }

// own returns an object that was read if it has the labels of the instance's server, and else nil.
func own[T interface {
	comparable
	metav1.Object
}](i *instance, o T, err error) (T, error) {
	var none T
	if err != nil {
		return none, ignoreNotFound(err)
	}
	if l := o.GetLabels(); l[LabelCluster] != i.driver.ClusterID || l[LabelUID] != string(i.uid) {
		return none, nil
	}
	return o, nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// readNode reads the node of a pod that an operator may have asserted to be off: by a taint, which
// deletes the pod, or on the VirtualMachine.
func (i *instance) readNode(ctx context.Context) error {
	i.node, i.asserted = nil, ""
	if i.driver.AssertedOff != nil {
		i.asserted = i.driver.AssertedOff(i.uid)
	}
	switch {
	case i.pod == nil, i.pod.Spec.NodeName == "":
		return nil
	case i.pod.UID != i.asserted && (i.pod.DeletionTimestamp == nil || provenEnd(i.pod) != nil):
		return nil
	}
	node, err := i.driver.Client.Nodes().Get(ctx, i.pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return explain("read", "Node", types.NamespacedName{Name: i.pod.Spec.NodeName}, ignoreNotFound(err))
	}
	i.node = node
	return nil
}

func (i *instance) id() string { return serverID(i.key.Namespace, i.key.Name) }

// end returns how the pod has ended, nil while that is not proven.
func (i *instance) end() *driver.Exit {
	if i.pod == nil {
		return nil
	}
	if exit := provenEnd(i.pod); exit != nil {
		return exit
	}
	return i.assertedEnd()
}

// assertedEnd returns the end of a pod that an operator asserts, nil if none does.
func (i *instance) assertedEnd() *driver.Exit {
	if i.pod == nil || i.pod.Spec.NodeName == "" {
		return nil
	}
	return assertedEnd(i.node, i.pod.UID == i.asserted, i.driver.Clock.Now())
}

// isLost reports whether the pod is gone that the PVC has recorded, without a record of its end.
func (i *instance) isLost() bool {
	if i.pod != nil || i.root == nil {
		return false
	}
	run := types.UID(i.root.Annotations[AnnotationRun])
	return run != "" && !hasEnded(i.root, run) && run != i.asserted
}

// isGated reports whether the pod waits for the server to be started.
func (i *instance) isGated() bool {
	return i.pod != nil && slices.ContainsFunc(i.pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == gateStopped })
}

func (i *instance) isRetained() bool {
	var marked metav1.Object
	switch volumes := i.sortedVolumes(); {
	case i.root != nil:
		marked = i.root
	case i.pod != nil:
		marked = i.pod
	case len(volumes) > 0:
		marked = volumes[0]
	default:
		return false
	}
	return marked.GetLabels()[LabelRetained] != ""
}

// settings returns what the pod was made from.
func (i *instance) settings() (s settings) {
	_ = json.Unmarshal([]byte(i.pod.Annotations[AnnotationSettings]), &s) // a damaged one differs, and waits for a restart
	return s
}

// fence returns ErrFenced if a later leader has changed an object of the server.
func (i *instance) fence(epoch uint64) error {
	if i.pod != nil {
		if err := enterEpoch(i.pod.DeepCopy(), epoch); err != nil {
			return err
		}
	}
	if i.root != nil {
		return enterEpoch(i.root.DeepCopy(), epoch)
	}
	return nil
}

// annotateRoot sets an annotation of the root disk's PVC, under a version that was read.
func (i *instance) annotateRoot(ctx context.Context, epoch uint64, key, value string) error {
	return i.updateRoot(ctx, epoch, func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, key, value) })
}

func (i *instance) updateRoot(ctx context.Context, epoch uint64, change func(*corev1.PersistentVolumeClaim)) error {
	updated, err := i.updateClaim(ctx, epoch, i.root, change)
	if err == nil {
		i.root = updated
	}
	return err
}

// updateClaim changes a PVC, under the version that was read.
func (i *instance) updateClaim(ctx context.Context, epoch uint64, claim *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim)) (*corev1.PersistentVolumeClaim, error) {
	claims := i.driver.Client.PersistentVolumeClaims(i.key.Namespace)
	updated, err := update(ctx, claims.Get, claim, isSame, func(read *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
		next := read.DeepCopy()
		change(next)
		if err := enterEpoch(next, epoch); err != nil {
			return nil, err
		}
		return claims.Update(ctx, next, metav1.UpdateOptions{})
	})
	return updated, explain("change", kindClaim, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, err)
}

func (i *instance) updatePod(ctx context.Context, epoch uint64, change func(*corev1.Pod)) error {
	pods := i.driver.Client.Pods(i.key.Namespace)
	updated, err := update(ctx, pods.Get, i.pod, isSamePod, func(read *corev1.Pod) (*corev1.Pod, error) {
		next := read.DeepCopy()
		change(next)
		if err := enterEpoch(next, epoch); err != nil {
			return nil, err
		}
		return pods.Update(ctx, next, metav1.UpdateOptions{})
	})
	if err == nil {
		i.pod = updated
	}
	return explain("change", kindPod, i.key, err)
}

// maxTries is how often a change is tried while others change the object.
const maxTries = 4

// update changes an object under the version that was read. If others have changed it meanwhile, it
// reads the object again, and tries once more as long as nothing is different that the driver decides
// from: the kubelet and the provisioner of volumes write to what they have just got.
func update[T metav1.Object](ctx context.Context, get func(context.Context, string, metav1.GetOptions) (T, error), read T, isSame func(a, b T) bool, try func(read T) (T, error)) (T, error) {
	for tries := 1; ; tries++ {
		updated, err := try(read)
		if !apierrors.IsConflict(err) || tries == maxTries {
			return updated, err
		}
		again, readErr := get(ctx, read.GetName(), metav1.GetOptions{})
		if readErr != nil || !isSame(read, again) {
			return updated, err
		}
		read = again
	}
}

// isSame reports whether an object has what it had of what the driver decides from.
func isSame[T metav1.Object](a, b T) bool {
	return a.GetUID() == b.GetUID() && a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp()) &&
		maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(ownAnnotations(a), ownAnnotations(b))
}

func isSamePod(a, b *corev1.Pod) bool {
	return isSame(a, b) && (provenEnd(a) == nil) == (provenEnd(b) == nil) && len(a.Spec.SchedulingGates) == len(b.Spec.SchedulingGates)
}

// ownAnnotations returns the annotations that the driver writes.
func ownAnnotations(o metav1.Object) map[string]string {
	own := maps.Clone(o.GetAnnotations())
	maps.DeleteFunc(own, func(key, _ string) bool { return !strings.HasPrefix(key, ownPrefix) })
	return own
}

// deletePod asks the kubelet to end the pod within a time, at least a second unless no kubelet will
// answer by the word of an operator. The epoch is left on the pod first, because a deletion carries
// none.
func (i *instance) deletePod(ctx context.Context, epoch uint64, grace int64) error {
	if i.pod.Annotations[AnnotationEpoch] != strconv.FormatUint(epoch, 10) && epoch != 0 {
		if err := i.updatePod(ctx, epoch, func(*corev1.Pod) {}); err != nil {
			return err
		}
	}
	if i.assertedEnd() == nil {
		grace = max(grace, minimalGrace)
	}
	if i.pod.DeletionTimestamp != nil && i.pod.DeletionGracePeriodSeconds != nil && *i.pod.DeletionGracePeriodSeconds <= grace {
		return nil
	}
	only := &metav1.Preconditions{UID: &i.pod.UID} // a kubelet changes the version at any time
	if i.isGated() {
		only.ResourceVersion = &i.pod.ResourceVersion // another leader may let it go
	}
	err := i.driver.Client.Pods(i.key.Namespace).Delete(ctx, i.key.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: only})
	return explain("delete", kindPod, i.key, ignoreNotFound(err))
}

// recordEnd records on the PVC how the pod has ended, or that it never ran.
func (i *instance) recordEnd(ctx context.Context, epoch uint64) error {
	if i.root == nil || hasEnded(i.root, i.pod.UID) {
		return nil
	}
	if i.root.Annotations[AnnotationRun] != string(i.pod.UID) {
		return i.annotateRoot(ctx, epoch, AnnotationNeverRan, string(i.pod.UID))
	}
	record, err := json.Marshal(endRecord{Pod: i.pod.UID, Exit: i.end()})
	if err != nil {
		return err
	}
	return i.annotateRoot(ctx, epoch, AnnotationEnd, string(record))
}

// forgetPod removes a pod that has ended or was never let go, after its end is recorded. That is
// looked up once more when the pod is being deleted, since nobody lets it go then. A pod that had a
// node is there until its kubelet has unmounted its volumes.
func (i *instance) forgetPod(ctx context.Context, epoch uint64) error {
	if i.pod.DeletionTimestamp == nil || i.assertedEnd() != nil {
		if err := i.deletePod(ctx, epoch, 0); err != nil {
			return err
		}
		if err := i.read(ctx); err != nil || i.pod == nil {
			return err
		}
	}
	if i.end() == nil {
		return driver.Errorf(driver.ErrRetry, "the pod %s was let go meanwhile, and has yet to end", i.key)
	}
	if err := i.recordEnd(ctx, epoch); err != nil {
		return err
	}
	err := i.removeFinalizer(ctx, epoch)
	if err != nil && !isGone(err) {
		return err
	}
	if grace := i.pod.DeletionGracePeriodSeconds; err != nil || grace == nil || *grace == 0 {
		i.pod = nil
	}
	return nil
}

func (i *instance) removeFinalizer(ctx context.Context, epoch uint64) error {
	return i.updatePod(ctx, epoch, func(p *corev1.Pod) {
		p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == FinalizerStopped })
	})
}

// isLeaving reports whether a pod whose end is recorded waits for its kubelet to remove it.
func (i *instance) isLeaving() bool {
	return i.pod.DeletionTimestamp != nil && !slices.Contains(i.pod.Finalizers, FinalizerStopped) && (i.root == nil || hasEnded(i.root, i.pod.UID))
}

func isGone(err error) bool { return apierrors.IsNotFound(err) }
