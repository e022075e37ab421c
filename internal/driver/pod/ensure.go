// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
)

// Ensure implements driver.Driver.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := checkArguments(spec); err != nil {
		return driver.Server{}, err
	}
	ctx, cancel := d.withCallTimeout(ctx)
	defer cancel()
	unlock, err := d.lockServer(ctx, spec.UID)
	if err != nil {
		return driver.Server{}, err
	}
	defer unlock()

	c := &convergence{spec: spec, instance: &instance{
		driver: d, uid: spec.UID, vm: spec.Name, names: volumeNames(spec),
		key: types.NamespacedName{Namespace: spec.Namespace, Name: baseName(spec.Name, spec.UID)},
	}}
	if err := c.begin(ctx); err != nil {
		return driver.Server{}, err
	}
	if err := c.converge(ctx); err != nil {
		return driver.Server{}, err
	}
	return c.server(), nil
}

func volumeNames(spec driver.ServerSpec) (names []string) {
	for _, v := range spec.Volumes {
		names = append(names, v.Name)
	}
	return names
}

// convergence is one call of Ensure.
type convergence struct {
	*instance
	spec driver.ServerSpec
	// secret is that of the pod if this call has made it.
	secret *corev1.Secret
	// budget is the server's, if it has one, and hasNoBudget is set if its record is to go.
	budget      *policyv1.PodDisruptionBudget
	hasNoBudget bool
}

// begin reads what there is, and refuses what Ensure must not touch.
func (c *convergence) begin(ctx context.Context) error {
	if err := c.read(ctx); err != nil {
		return err
	}
	exists := c.exists()
	switch {
	case c.spec.ID != "" && (c.spec.ID != c.id() || !exists):
		return driver.Errorf(driver.ErrNotFound, "there is no server %s of UID %s", c.spec.ID, c.uid)
	case exists && c.isRetained():
		return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
			"the server %s was released: remove the label %s from its PVCs and its pod to have it back", c.id(), LabelRetained))
	case !exists || c.spec.Power != driver.PowerOff:
		if err := c.driver.checkSpec(c.spec); err != nil {
			return err
		}
	}
	if err := c.fence(c.spec.Epoch); err != nil {
		return err
	}
	return c.checkIdentity(ctx)
}

// checkIdentity refuses objects other than those that the VirtualMachine's status has recorded. A
// pod that was never let go has run nothing: a deposed leader may have left it, so it is removed.
func (c *convergence) checkIdentity(ctx context.Context) error {
	if c.root != nil {
		if err := c.checkRecorded(kindClaim, c.root); err != nil {
			return err
		}
	}
	if c.pod == nil {
		return nil
	}
	err := c.checkRecorded(kindPod, c.pod)
	if err != nil && c.isGated() {
		return c.forgetPod(ctx, c.spec.Epoch)
	}
	return err
}

func (c *convergence) checkRecorded(kind string, o metav1.Object) error {
	recorded := c.recorded(kind, o.GetName())
	switch {
	case recorded != nil && recorded.UID == o.GetUID():
		return nil
	case recorded != nil && recorded.UID == "" && recorded.Nonce != "" && recorded.Nonce == o.GetAnnotations()[AnnotationNonce]:
		return nil
	}
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
		"%s with UID %s was not made for this VirtualMachine, whose status does not have it: delete it, or delete the VirtualMachine", describe(kind, o), o.GetUID()))
}

// recorded returns what the VirtualMachine's status has recorded of an object, or nil.
func (c *convergence) recorded(kind, name string) *driver.Object {
	n := slices.IndexFunc(c.spec.Objects, func(o driver.Object) bool { return o.Kind == kind && o.Name == name })
	if n < 0 {
		return nil
	}
	return &c.spec.Objects[n]
}

// converge takes the steps that are possible without waiting. That a disk cannot grow keeps nothing
// else from being done.
func (c *convergence) converge(ctx context.Context) error {
	if err := c.convergePower(ctx); err != nil || c.spec.PowerOnly {
		return err
	}
	if err := c.ensureBudget(ctx); err != nil || c.pod != nil && (c.end() != nil || c.isToStop()) {
		return err
	}
	return c.growDisks(ctx)
}

// convergePower takes the steps to what the server should do: the disk, the pod, and the pod's guest.
func (c *convergence) convergePower(ctx context.Context) error {
	if !c.spec.Ephemeral {
		if err := c.ensureClaim(ctx, disk{name: rootDisk, bytes: c.spec.RootDiskBytes}); err != nil {
			return err
		}
	}
	if c.isEndDue() {
		if err := c.removeEndedPod(ctx); err != nil {
			return err
		}
	}
	if c.pod == nil {
		if err := c.checkLost(); err != nil || c.spec.Power == driver.PowerOff && !c.spec.Ephemeral {
			return err
		}
		if err := c.createPod(ctx); err != nil {
			return err
		}
	}
	return c.convergePod(ctx)
}

// isEndDue reports whether a pod that has ended is to be removed: for the next one, or because
// somebody deletes it.
func (c *convergence) isEndDue() bool {
	return c.pod != nil && c.end() != nil && (c.spec.Power != driver.PowerOff || c.pod.DeletionTimestamp != nil)
}

func (c *convergence) convergePod(ctx context.Context) error {
	switch {
	case c.end() != nil, c.isGated() && c.spec.Power == driver.PowerOff:
		return nil
	case c.isGated() && c.pod.DeletionTimestamp == nil && !c.spec.PowerOnly:
		return c.letGo(ctx)
	case c.isToStop():
		return c.stop(ctx)
	}
	if err := c.setPaused(ctx, c.spec.Power == driver.PowerPaused); err != nil || c.spec.PowerOnly {
		return err
	}
	return c.updateMeta(ctx)
}

// isToStop reports whether the run of the pod is to end. One that somebody has deleted ends anyway.
func (c *convergence) isToStop() bool {
	restart := c.spec.RestartRun != "" && c.spec.RestartRun == string(c.pod.UID)
	return c.spec.Power == driver.PowerOff || restart || c.pod.DeletionTimestamp != nil
}

// owners returns the owner of the pod: drain evicts only pods that have one. It is the
// VirtualMachine, unless the pod has to outlive that.
func (c *convergence) owners() []metav1.OwnerReference {
	switch {
	case !c.spec.RetainOnDelete:
		return []metav1.OwnerReference{ownerReference(c.spec)}
	case c.root != nil:
		return []metav1.OwnerReference{claimReference(c.root)}
	}
	return nil
}

// updateMeta gives the pod the VirtualMachine's labels and its owner.
func (c *convergence) updateMeta(ctx context.Context) error {
	labels, owners := c.driver.newMeta(c.spec, c.key.Name, "").Labels, c.owners()
	if equality.Semantic.DeepEqual(c.pod.Labels, labels) && equality.Semantic.DeepEqual(c.pod.OwnerReferences, owners) {
		return nil
	}
	return c.updatePod(ctx, c.spec.Epoch, func(p *corev1.Pod) { p.Labels, p.OwnerReferences = labels, owners })
}

// readPod reads a pod whose name was taken, by an earlier try or another leader, or by what is foreign.
func (c *convergence) readPod(ctx context.Context) error {
	if err := c.read(ctx); err != nil {
		return err
	}
	if c.pod == nil {
		return takenError(kindPod, c.key)
	}
	return c.checkIdentity(ctx)
}

func takenError(kind string, key types.NamespacedName) error {
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry, "a %s of the name %s exists and is not Drover's: delete or rename it", kind, key))
}

// removeEndedPod removes a pod whose end is proven. The end is recorded first: in the status of the
// VirtualMachine, and on the PVC.
func (c *convergence) removeEndedPod(ctx context.Context) error {
	if r := c.recorded(kindPod, c.key.Name); r != nil && !r.Ended {
		ended := *r
		ended.UID, ended.Ended = c.pod.UID, true
		return c.recordFirst(ended)
	}
	if err := c.forgetPod(ctx, c.spec.Epoch); err != nil || c.pod == nil || c.root == nil || c.spec.Power == driver.PowerOff {
		return err
	}
	return driver.Errorf(driver.ErrRetry, "the pod %s has ended, and its kubelet has yet to remove it: the next one is made after that", c.key)
}

// checkLost returns an error if a pod is gone whose end is not proven. A pod that the PVC does not
// have was never let go, and one that has no UID in the record was never found.
func (c *convergence) checkLost() error {
	r := c.recorded(kindPod, c.key.Name)
	if c.isLost() || c.spec.Ephemeral && r != nil && r.UID != "" && !r.Ended && r.UID != c.asserted {
		return lostError(c.key)
	}
	return nil
}

func lostError(key types.NamespacedName) error {
	return driver.WithReason(reasonPodLost, driver.Errorf(driver.ErrRetry,
		"the pod %s is gone, and nothing proves that its containers have ended: the machine may run still, so nothing else is done with it; see docs/cluster.md, \"A pod that is lost\"", key))
}

// createPod makes a pod that is not scheduled yet. The intent has to be recorded before.
func (c *convergence) createPod(ctx context.Context) error {
	if !c.isPodIntended() {
		return c.recordFirst(c.intents()...)
	}
	if err := c.ensureVolumes(ctx); err != nil {
		return err
	}
	if err := c.ensureBudget(ctx); err != nil {
		return err
	}
	pod, err := c.driver.newPod(c.fitted(), c.recorded(kindPod, c.key.Name).Nonce, c.diskSettings(), c.owners())
	if err != nil {
		return err
	}
	created, err := c.driver.Client.Pods(c.key.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return c.readPod(ctx)
	}
	if err != nil {
		return explain("create", kindPod, c.key, err)
	}
	c.pod = created
	return nil
}

// letGo lets the scheduler place the pod, after it has its Secret and the PVC has recorded it.
func (c *convergence) letGo(ctx context.Context) error {
	if err := c.ensureSecret(ctx); err != nil {
		return err
	}
	if c.root != nil && c.root.Annotations[AnnotationRun] != string(c.pod.UID) {
		if err := c.annotateRoot(ctx, c.spec.Epoch, AnnotationRun, string(c.pod.UID)); err != nil {
			return err
		}
	}
	return c.updatePod(ctx, c.spec.Epoch, func(p *corev1.Pod) {
		p.Spec.SchedulingGates = slices.DeleteFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == gateStopped })
	})
}

// ensureSecret makes the Secret of a pod that was not let go yet. Secrets of tenants are never read,
// so one that exists already, and is not recorded, may be anyone's: another pod is made then, whose
// Secret has another name.
func (c *convergence) ensureSecret(ctx context.Context) error {
	name := secretOf(c.pod)
	r := c.recorded(kindSecret, name)
	switch {
	case name == "", r != nil && r.UID != "":
		return nil
	case r == nil:
		return c.replacePod(ctx)
	}
	control, err := c.driver.machines.NewEnd(ctx, c.uid, c.pod.Annotations[AnnotationNonce])
	if err != nil {
		return explain("make the keys of", kindPod, c.key, err)
	}
	secret := c.driver.newSecret(c.spec, c.pod, r.Nonce, control)
	created, err := c.driver.Client.Secrets(c.key.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return c.replacePod(ctx)
	}
	if err != nil {
		return explain("create", kindSecret, types.NamespacedName{Namespace: c.key.Namespace, Name: name}, err)
	}
	c.secret = created
	return nil
}

// replacePod removes a pod that was not let go, for another one.
func (c *convergence) replacePod(ctx context.Context) error {
	if err := c.forgetPod(ctx, c.spec.Epoch); err != nil {
		return err
	}
	return c.recordFirst(c.podIntents()...)
}

// intents returns the objects that the next steps create, with new nonces.
func (c *convergence) intents() []driver.Object {
	var all []driver.Object
	if r := c.recorded(kindClaim, c.key.Name); r == nil && !c.spec.Ephemeral {
		all = append(all, newIntent(kindClaim, c.key.Name))
	}
	if c.spec.BlockEviction && c.recorded(kindBudget, c.key.Name) == nil {
		all = append(all, newIntent(kindBudget, c.key.Name))
	}
	if c.spec.Power == driver.PowerOff && !c.spec.Ephemeral || c.pod != nil {
		return all
	}
	if !c.isPodIntended() {
		all = append(all, c.podIntents()...)
	}
	for _, v := range c.spec.Volumes {
		if name := claimName(c.key.Name, v.Name); c.recorded(kindClaim, name) == nil {
			all = append(all, newIntent(kindClaim, name))
		}
	}
	return all
}

// isPodIntended reports whether the next pod and its Secret are recorded.
func (c *convergence) isPodIntended() bool {
	r := c.recorded(kindPod, c.key.Name)
	return r != nil && !r.Ended && r.UID == "" && c.recorded(kindSecret, secretName(c.key.Name, r.Nonce)) != nil
}

// podIntents returns the next pod and its Secret.
func (c *convergence) podIntents() []driver.Object {
	pod := newIntent(kindPod, c.key.Name)
	return []driver.Object{pod, newIntent(kindSecret, secretName(c.key.Name, pod.Nonce))}
}

// claimUID returns the UID of the PVC that an object is the record of, "" if there is none.
func (c *convergence) claimUID(o driver.Object) types.UID {
	for _, of := range disksOf(c.spec) {
		if claim := c.claim(of.name); claim != nil && claim.Name == o.Name && claim.Annotations[AnnotationNonce] == o.Nonce {
			return claim.UID
		}
	}
	return ""
}

func newIntent(kind, name string) driver.Object {
	return driver.Object{Kind: kind, Name: name, Nonce: string(uuid.NewUUID())}
}

// recordFirst ends the call: the caller records the objects, and calls again.
func (c *convergence) recordFirst(changed ...driver.Object) error {
	all := slices.Clone(c.spec.Objects)
	for _, o := range changed {
		all = slices.DeleteFunc(all, func(have driver.Object) bool {
			return have.Kind == o.Kind && (have.Name == o.Name || o.Kind == kindSecret) // there is one Secret
		})
		all = append(all, o)
	}
	return &driver.RecordFirstError{Objects: all}
}

// stop asks the guest to shut down, until the time at which a stop is forced.
func (c *convergence) stop(ctx context.Context) error {
	grace := int64(minimalGrace)
	now := c.driver.Clock.Now()
	switch {
	case c.spec.StopBy.IsZero():
		grace = maxGrace
	case now.Before(c.spec.StopBy):
		grace = int64(math.Ceil(c.spec.StopBy.Sub(now).Seconds()))
	}
	if err := c.deletePod(ctx, c.spec.Epoch, grace); err != nil {
		return err
	}
	return c.read(ctx)
}

// maxGrace, in seconds, is for a stop that is never forced.
const maxGrace = 7 * 24 * 3600

// server describes the server as the call leaves it, with the record that its status should have.
func (c *convergence) server() driver.Server {
	s := c.toServer()
	s.Objects = c.objects()
	if c.pod != nil && c.end() == nil && !c.isGated() && !c.spec.PowerOnly {
		s.Pending = pendingFields(c.settings(), c.driver.settingsOf(c.spec))
	}
	return s
}

// objects returns the record of the server's objects, with the UIDs of those that exist now.
func (c *convergence) objects() []driver.Object {
	all := slices.DeleteFunc(slices.Clone(c.spec.Objects), func(o driver.Object) bool { return o.Kind == kindBudget && c.hasNoBudget })
	for n, o := range all {
		switch {
		case o.Kind == kindClaim:
			all[n].UID = cmp.Or(c.claimUID(o), o.UID)
		case o.Kind == kindPod && c.pod != nil && c.pod.Annotations[AnnotationNonce] == o.Nonce:
			all[n].UID = c.pod.UID
		case o.Kind == kindBudget && c.budget != nil:
			all[n].UID = c.budget.UID
		case o.Kind == kindSecret && c.secret != nil && c.secret.Name == o.Name:
			all[n].UID = c.secret.UID
		}
	}
	return all
}
