// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// Reasons of errors, shown as status.reason.
const (
	reasonVolumeLost = "VolumeLost"
	reasonPodLost    = "PodLost"
)

// Ensure implements driver.Driver.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	ctx, end, err := d.calls.BeginChange(ctx, spec.UID)
	if err != nil {
		return driver.Server{}, err
	}
	defer end()
	var s driver.Server
	err = retryConflicts(func() error {
		c := d.newConvergence(spec)
		if err := c.recordUnknown(ctx); err != nil {
			return err
		}
		if err := c.begin(ctx); err != nil {
			return err
		}
		if err := c.converge(ctx); err != nil {
			return c.recordClaims(err)
		}
		s = c.describe()
		return nil
	})
	return s, err
}

// convergence is one call of Ensure.
type convergence struct {
	*writer
	driver *Driver
	spec   driver.ServerSpec
	// digests are those of the spec. If noDigests is set, they are not known.
	digests   objects.Digests
	noDigests error
	// secret is that of the pod if this call has made it.
	secret *corev1.Secret
	// budget is the server's, if it has one, and hasNoBudget is set if its record is to go.
	budget      *policyv1.PodDisruptionBudget
	hasNoBudget bool
}

func (d *Driver) newConvergence(spec driver.ServerSpec) *convergence {
	return &convergence{writer: &writer{Instance: d.reader.New(spec), client: d.Client, epoch: spec.Epoch}, driver: d, spec: spec}
}

// recordUnknown records the objects of a server of which nothing is recorded or known yet. If one
// exists anyway, the next call finds it, and refuses it unless it has that nonce.
func (c *convergence) recordUnknown(ctx context.Context) error {
	if c.spec.ID != "" || len(c.spec.Objects) > 0 {
		return nil
	}
	if err := c.driver.Objects.CheckSpec(c.spec); err != nil {
		return err
	}
	return c.recordFirst(c.intents(ctx)...)
}

// begin reads what there is, and refuses what Ensure must not touch.
func (c *convergence) begin(ctx context.Context) error {
	if err := c.Read(ctx); err != nil {
		return err
	}
	if err := c.checkServer(); err != nil {
		return err
	}
	if err := c.checkIdentity(ctx); err != nil {
		return err
	}
	c.noteMade()
	if err := c.recordRefusal(ctx); err != nil {
		return err
	}
	if c.End() != nil && c.Pod.DeletionTimestamp != nil { // a drain or the deletion of the namespace waits for that, whatever the spec is
		if err := c.removeEndedPod(ctx); err != nil {
			return err
		}
	}
	c.noDigests = c.digestSecrets(ctx)
	if c.Exists() && c.spec.Power == driver.PowerOff { // which needs neither digests nor a spec that can run
		return nil
	}
	return cmp.Or(c.noDigests, c.driver.Objects.CheckSpec(c.spec))
}

// checkServer refuses a server that is not the one meant, was released, or has a later epoch.
func (c *convergence) checkServer() error {
	exists := c.Exists()
	switch {
	case c.spec.ID != "" && (c.spec.ID != c.ID() || !exists):
		return driver.Errorf(driver.ErrNotFound, "there is no server %s of UID %s", c.spec.ID, c.UID)
	case exists && c.IsRetained():
		return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
			"the server %s was released: remove the label %s from its PVCs and its pod to have it back", c.ID(), objects.LabelRetained))
	}
	return c.fence()
}

// digestSecrets computes the digests of the spec's user-data and network data.
func (c *convergence) digestSecrets(ctx context.Context) (err error) {
	if c.digests.UserData, err = c.driver.machines.Digest(ctx, c.UID, c.spec.UserData); err != nil {
		return err
	}
	c.digests.NetworkData, err = c.driver.machines.Digest(ctx, c.UID, c.spec.NetworkData)
	return err
}

// checkIdentity refuses objects other than those that the VirtualMachine's status has recorded. A
// pod that still has its scheduling gate has run nothing: a deposed leader may have left it, so it is
// removed. The finalizer of one that was deleted by others is removed once it has ended.
func (c *convergence) checkIdentity(ctx context.Context) error {
	if c.Root != nil {
		if err := c.checkRecorded(objects.KindClaim, c.Root); err != nil {
			return err
		}
	}
	if c.Pod == nil {
		return nil
	}
	err := c.checkRecorded(objects.KindPod, c.Pod)
	if err == nil || !c.IsGated() && (c.Pod.DeletionTimestamp == nil || c.End() == nil) {
		return err
	}
	if err := c.forgetPod(ctx); err != nil || c.Pod == nil {
		return err
	}
	return driver.Errorf(driver.ErrRetry, "the pod %s is not this VirtualMachine's, and its kubelet has yet to remove it", c.Key)
}

func (c *convergence) checkRecorded(kind string, o metav1.Object) error {
	recorded := c.recorded(kind, o.GetName())
	switch {
	case recorded != nil && recorded.UID == o.GetUID():
		return nil
	case recorded != nil && recorded.UID == "" && recorded.Nonce != "" && recorded.Nonce == o.GetAnnotations()[objects.AnnotationNonce] && !c.isNonceUsed(recorded):
		return nil
	}
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
		"%s with UID %s was not made for this VirtualMachine, whose status does not have it: delete it, or delete the VirtualMachine", objects.Describe(kind, o), o.GetUID()))
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
	if err := c.ensureBudget(ctx); err != nil {
		return err
	}
	c.NoteBudget()
	if c.Pod != nil && (c.End() != nil || c.isToStop()) {
		return nil
	}
	return c.growDisks(ctx)
}

// convergePower takes the steps to what the server should do: the disk, the pod, and the pod's guest. A pod
// that is to stop needs no disk.
func (c *convergence) convergePower(ctx context.Context) error {
	isStopping := c.Pod != nil && !c.IsGated() && c.End() == nil && c.isToStop()
	if !c.spec.Ephemeral && !isStopping {
		if err := c.ensureClaim(ctx, objects.Disk{Name: objects.RootDisk, Bytes: c.spec.RootDiskBytes}); err != nil {
			return err
		}
	}
	if c.End() != nil && c.spec.Power != driver.PowerOff { // the next pod has its name
		if err := c.removeEndedPod(ctx); err != nil {
			return err
		}
	}
	if err := c.checkLost(); err != nil {
		return err
	}
	if c.Pod == nil {
		if c.spec.Power == driver.PowerOff && !c.spec.Ephemeral {
			return nil
		}
		if err := c.createPod(ctx); err != nil {
			return err
		}
	}
	return c.convergePod(ctx)
}

func (c *convergence) convergePod(ctx context.Context) error {
	switch {
	case c.End() != nil, c.IsGated() && c.spec.Power == driver.PowerOff:
		return nil
	case c.IsGated() && c.Pod.DeletionTimestamp == nil && !c.spec.PowerOnly:
		return c.removeGate(ctx)
	case c.isToStop():
		return c.stop(ctx)
	case !c.spec.PowerOnly && !c.HasContainer() && c.isOutdated():
		return c.replaceUnstarted(ctx)
	}
	if c.spec.Ephemeral && !c.spec.PowerOnly {
		if err := c.ensureSecret(ctx); err != nil {
			return err
		}
	}
	if err := c.setPaused(ctx, c.spec.Power == driver.PowerPaused); err != nil || c.spec.PowerOnly {
		return err
	}
	return c.updateMeta(ctx)
}

// isToStop reports whether the run of the pod is to end. One that somebody has deleted ends anyway.
func (c *convergence) isToStop() bool {
	restart := c.spec.RestartRun != "" && c.spec.RestartRun == string(c.Pod.UID)
	return c.spec.Power == driver.PowerOff || restart || c.Pod.DeletionTimestamp != nil
}

// owners returns the owner of the pod: drain evicts only pods that have one. It is the
// VirtualMachine, unless the pod has to outlive that.
func (c *convergence) owners() []metav1.OwnerReference {
	switch {
	case !c.spec.RetainOnDelete:
		return []metav1.OwnerReference{objects.OwnerReference(c.spec)}
	case c.Root != nil:
		return []metav1.OwnerReference{objects.ClaimReference(c.Root)}
	}
	return nil
}

// updateMeta gives the pod the VirtualMachine's labels, its owner, whether evictions are refused,
// what its probe asks, and in which boot of its node it runs.
func (c *convergence) updateMeta(ctx context.Context) error {
	wanted := c.Pod.DeepCopy()
	c.setMeta(wanted)
	if equality.Semantic.DeepEqual(c.Pod.ObjectMeta, wanted.ObjectMeta) {
		return nil
	}
	return c.updatePod(ctx, c.setMeta)
}

func (c *convergence) setMeta(p *corev1.Pod) {
	c.driver.Objects.SetLabels(p, c.spec)
	p.OwnerReferences = c.owners()
	delete(p.Annotations, objects.AnnotationEviction)
	if c.spec.BlockEviction {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, objects.AnnotationEviction, objects.EvictionBlock)
	}
	objects.SetReadiness(p, c.spec)
	if boot := c.UnrecordedBoot(); boot != "" {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, objects.AnnotationBoot, boot)
	}
}

// readPod reads a pod whose name was taken, by an earlier try or another leader, or by an object that is not Drover's.
func (c *convergence) readPod(ctx context.Context) error {
	if err := c.Read(ctx); err != nil {
		return err
	}
	if c.Pod == nil {
		return takenError(objects.KindPod, c.Key)
	}
	if err := c.checkIdentity(ctx); err != nil || c.Pod != nil {
		return err
	}
	return driver.Errorf(driver.ErrRetry, "the pod %s of another leader was removed: the next one is made after that", c.Key)
}

func takenError(kind string, key types.NamespacedName) error {
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry, "a %s of the name %s exists and is not Drover's: delete or rename it", kind, key))
}

// removeEndedPod removes a pod whose end is proven. The end is recorded first: in the status of the
// VirtualMachine, and on the PVC. The pod object remains until its kubelet
// has unmounted the volumes: Server.IsLeaving.
func (c *convergence) removeEndedPod(ctx context.Context) error {
	if err := c.checkRejection(); err != nil {
		return err
	}
	if err := c.recordEnded(); err != nil {
		return err
	}
	c.driver.rejectedSince.Delete(c.Pod.UID)
	return c.forgetPod(ctx)
}

// rejectionDelay is how long a kubelet's rejection of a pod has to stand before it proves the end of a guest that
// was seen to run. A kubelet that was restarted reports it before it ends the container.
const rejectionDelay = time.Minute

// checkRejection returns an error while a rejection is too new to prove that the pod has ended.
func (c *convergence) checkRejection() error {
	if c.spec.SeenRun != string(c.Pod.UID) || !instance.IsRejected(c.Pod) || c.isEndRecorded() || c.AssertedEnd() != nil {
		return nil
	}
	now := c.driver.Clock.Now()
	first, _ := c.driver.rejectedSince.LoadOrStore(c.Pod.UID, now)
	if now.Sub(first) < rejectionDelay {
		return driver.Errorf(driver.ErrRetry, "the kubelet of node %s rejects the pod %s, whose guest has run there, and may have yet to end its container: the next pod is made once that has lasted for %v", c.Pod.Spec.NodeName, c.Key, rejectionDelay)
	}
	return nil
}

// isEndRecorded reports whether the status of the VirtualMachine has that the pod has ended.
func (c *convergence) isEndRecorded() bool {
	r := c.recorded(objects.KindPod, c.Key.Name)
	return r == nil || r.Ended
}

// recordEnded has the status of the VirtualMachine record that the pod has ended.
func (c *convergence) recordEnded() error {
	if c.isEndRecorded() {
		return nil
	}
	ended := *c.recorded(objects.KindPod, c.Key.Name)
	ended.UID, ended.Ended, ended.Images = c.Pod.UID, true, c.endedImages(ended.Images)
	return c.recordFirst(ended)
}

// checkLost returns an error if nothing tells whether the machine runs: its container or its pod is lost. A pod
// that the PVC does not have never lost its scheduling gate, and one that has no UID in the record was never found.
func (c *convergence) checkLost() error {
	r := c.recorded(objects.KindPod, c.Key.Name)
	if c.Pod == nil && c.spec.Ephemeral && r != nil && r.UID != "" && !r.Ended && r.UID != c.Asserted {
		return lostError(c.PodLost())
	}
	return lostError(c.Lost())
}

// lostError returns the error that a machine is lost, nil if there is no cause.
func lostError(cause string) error {
	if cause == "" {
		return nil
	}
	return driver.WithReason(reasonPodLost, driver.Errorf(driver.ErrRetry,
		"%s: the machine may run still, so nothing else is done with it; see docs/cluster.md, \"A pod that is lost\"", cause))
}

// hasGate reports whether the next pod is made with a scheduling gate. The pod of an ephemeral server
// that is to run has none, which saves a write of each pod: no kubelet starts it before its Secret
// exists, which is made for that very pod.
func (c *convergence) hasGate() bool {
	return !c.spec.Ephemeral || c.spec.Power == driver.PowerOff || c.spec.PowerOnly
}

// createPod makes a pod that runs nothing yet. The intent has to be recorded before.
func (c *convergence) createPod(ctx context.Context) error {
	if c.noDigests != nil {
		return c.noDigests
	}
	if !c.isPodIntended() {
		return c.recordFirst(c.intents(ctx)...)
	}
	if err := c.ensureVolumes(ctx); err != nil {
		return err
	}
	if err := c.ensureBudget(ctx); err != nil {
		return err
	}
	r := c.recorded(objects.KindPod, c.Key.Name)
	on := c.driver.kvm.Choose(ctx, c.spec.Placement)
	pod, err := c.driver.Objects.NewPod(c.fitted(), objects.Run{Nonce: r.Nonce, Images: r.Images, Disks: c.diskSettings(), Digests: c.digests, Made: c.madeDisks(), Owners: c.owners(), KVM: on, Ungated: !c.hasGate()})
	if err != nil {
		return err
	}
	created, err := c.driver.Client.Pods(c.Key.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return c.readPod(ctx)
	}
	if err != nil {
		return objects.Explain("create", objects.KindPod, c.Key, err)
	}
	c.Note(created)
	c.Pod = created
	return c.checkCreated(ctx)
}

// checkCreated removes a pod that was just created and is not as it was asked for. Without a failure it
// would be replaced for ever, as one that has another spec.
func (c *convergence) checkCreated(ctx context.Context) error {
	changed := c.pendingFields()
	if len(changed) == 0 {
		return nil
	}
	failure, uid := objects.ChangedError(c.Key, changed), c.Pod.UID
	err := retryConflicts(func() error {
		if err := c.Read(ctx); err != nil || c.Pod == nil || c.Pod.UID != uid {
			return err
		}
		return c.forgetPod(ctx)
	})
	if err != nil {
		c.driver.Log.Info("Pod that was changed at its creation is not removed yet", "pod", c.Key, "cause", err.Error())
	}
	return failure
}

// removeGate removes the scheduling gate of the pod, after its Secret is made and the PVC has
// recorded it.
func (c *convergence) removeGate(ctx context.Context) error {
	if c.isGatedOutdated(ctx) {
		return c.replacePod(ctx, nil)
	}
	if err := c.ensureSecret(ctx); err != nil {
		return err
	}
	if err := c.markClaims(ctx); err != nil {
		return err
	}
	return c.updatePod(ctx, objects.RemoveGate)
}

// isOutdated reports whether the pod differs from the one that would be made for the spec.
func (c *convergence) isOutdated() bool { return len(c.pendingFields()) > 0 }

// pendingFields names the fields of the spec that wait for the next pod. Another image than that of a disk
// which was made is none: see refusedImage.
func (c *convergence) pendingFields() []string {
	has, wants := c.Settings(), c.driver.Objects.Settings(c.spec, c.digests)
	if has.Kernel == nil && wants.Kernel == nil && c.isRootMade() {
		wants.Image, wants.Checksum = has.Image, has.Checksum
	}
	return objects.PendingFields(has, wants)
}

// isGatedOutdated reports whether a gated pod differs from the one that would be made for its start. That of
// an ephemeral server has stood for it while it was off.
func (c *convergence) isGatedOutdated(ctx context.Context) bool {
	switch {
	case c.isOutdated():
		return true
	case !c.spec.Ephemeral:
		return false
	case c.spec.Image.PullPolicy == driver.PullAlways:
		return true
	}
	return c.driver.kvm.Choose(ctx, c.spec.Placement).Resource != objects.RequestedOf(c.Pod, c.driver.kvm.Resource)
}

// markClaims has the PVCs say which they are, and the one of the root disk which pod may run.
func (c *convergence) markClaims(ctx context.Context) error {
	for _, claim := range c.Volumes() {
		if claim.Annotations[objects.AnnotationClaim] != "" {
			continue
		}
		updated, err := c.updateClaim(ctx, claim, objects.MarkClaim)
		if err != nil {
			return err
		}
		c.SetClaim(claim.Labels[objects.LabelVolume], updated)
	}
	if c.Root == nil || c.Root.Annotations[objects.AnnotationRun] == string(c.Pod.UID) {
		return nil
	}
	return c.updateRoot(ctx, func(root *corev1.PersistentVolumeClaim) {
		objects.MarkClaim(root)
		metav1.SetMetaDataAnnotation(&root.ObjectMeta, objects.AnnotationRun, string(c.Pod.UID))
	})
}

// ensureSecret makes the Secret of a pod. It reads no Secret. If one of the name exists and is not
// recorded, a tenant may have made it, so the call fails, and the pod is replaced by one whose Secret has
// another name.
func (c *convergence) ensureSecret(ctx context.Context) error {
	name := objects.SecretOf(c.Pod)
	r, pod := c.recorded(objects.KindSecret, name), c.recorded(objects.KindPod, c.Key.Name)
	switch {
	case name == "":
		return nil
	case r != nil && r.UID != "", c.machineHasSecret(pod):
		c.driver.secrets.LoadOrStore(c.Pod.UID, nil)
		return nil
	case r == nil, c.IsGated() && pod != nil && pod.Ended:
		return c.replacePod(ctx, nil)
	}
	if made, ok := c.driver.secrets.Load(c.Pod.UID); ok {
		c.secret = made
		return nil
	}
	control, err := c.driver.machines.NewEnd(ctx, c.UID, c.Pod.Annotations[objects.AnnotationNonce])
	if err != nil {
		return objects.Explain("make the keys of", objects.KindPod, c.Key, err)
	}
	secret := c.driver.Objects.NewSecret(c.spec, c.Pod, r.Nonce, control)
	created, err := c.driver.Client.Secrets(c.Key.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	key := types.NamespacedName{Namespace: c.Key.Namespace, Name: name}
	if apierrors.IsAlreadyExists(err) {
		return c.replacePod(ctx, takenError(objects.KindSecret, key))
	}
	if err != nil {
		return objects.Explain("create", objects.KindSecret, key, err)
	}
	c.secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: created.Name, UID: created.UID}}
	c.driver.secrets.Store(c.Pod.UID, c.secret)
	return nil
}

// machineHasSecret reports whether the machine in a pod without a gate is known to have the right
// Secret: it has proven itself with the keys in it, or an earlier call, which has made the Secret,
// has recorded the pod.
func (c *convergence) machineHasSecret(recorded *driver.Object) bool {
	return c.driver.machines.HasAnswered(c.Pod.UID) || !c.IsGated() && recorded != nil && recorded.UID == c.Pod.UID
}

// replaceUnstarted has a pod end whose container was not created, so that the next one is made for the
// spec as it is now: the old one may wait for what the spec no longer asks for. If its node starts it all
// the same, the guest is shut down.
func (c *convergence) replaceUnstarted(ctx context.Context) error {
	if err := c.deletePod(ctx, c.Settings().GraceSecs); err != nil {
		return err
	}
	return c.Read(ctx)
}

// replacePod removes a pod, at once if it has its scheduling gate, and else once it has ended. A later
// call makes another one; it has to wait if a failure is given.
func (c *convergence) replacePod(ctx context.Context, failure error) error {
	if c.End() != nil {
		if err := c.recordEnded(); err != nil {
			return err
		}
	}
	if err := c.forgetPod(ctx); err != nil {
		return err
	}
	return c.recordAndFail(failure, c.podIntents(ctx)...)
}

// intents returns the objects that the next steps create, with new nonces.
func (c *convergence) intents(ctx context.Context) []driver.Object {
	var all []driver.Object
	if r := c.recorded(objects.KindClaim, c.Key.Name); r == nil && !c.spec.Ephemeral {
		all = append(all, newIntent(objects.KindClaim, c.Key.Name))
	}
	if c.spec.BlockEviction && c.recorded(objects.KindBudget, c.Key.Name) == nil {
		all = append(all, newIntent(objects.KindBudget, c.Key.Name))
	}
	if c.spec.Power == driver.PowerOff && !c.spec.Ephemeral || c.Pod != nil {
		return all
	}
	if !c.isPodIntended() {
		all = append(all, c.podIntents(ctx)...)
	}
	for _, v := range c.spec.Volumes {
		if name := objects.ClaimName(c.Key.Name, v.Name); c.recorded(objects.KindClaim, name) == nil {
			all = append(all, newIntent(objects.KindClaim, name))
		}
	}
	return all
}

// isNonceUsed reports whether the pod with a recorded nonce was made and removed. The record is old then: another
// leader may have recorded the next pod since.
func (c *convergence) isNonceUsed(r *driver.Object) bool {
	return r.Kind == objects.KindPod && c.Root != nil && c.Root.Annotations[objects.AnnotationUsedNonce] == r.Nonce
}

// isPodIntended reports whether the next pod and its Secret are recorded.
func (c *convergence) isPodIntended() bool {
	r := c.recorded(objects.KindPod, c.Key.Name)
	return r != nil && !r.Ended && r.UID == "" && !c.isNonceUsed(r) && c.hasResolved(r) && c.recorded(objects.KindSecret, objects.SecretName(c.Key.Name, r.Nonce)) != nil
}

// podIntents returns the next pod, with the digests of its images, and its Secret.
func (c *convergence) podIntents(ctx context.Context) []driver.Object {
	pod := newIntent(objects.KindPod, c.Key.Name)
	pod.Images = c.resolveImages(ctx)
	return []driver.Object{pod, newIntent(objects.KindSecret, objects.SecretName(c.Key.Name, pod.Nonce))}
}

// claimUID returns the UID of the PVC that an object is the record of, "" if there is none.
func (c *convergence) claimUID(o driver.Object) types.UID {
	for _, of := range objects.DisksOf(c.spec) {
		if claim := c.Claim(of.Name); claim != nil && claim.Name == o.Name && claim.Annotations[objects.AnnotationNonce] == o.Nonce {
			return claim.UID
		}
	}
	return ""
}

func newIntent(kind, name string) driver.Object {
	return driver.Object{Kind: kind, Name: name, Nonce: string(uuid.NewUUID())}
}

// recordClaims has the UIDs of PVCs recorded before a failure is reported: without them, an empty disk
// could replace one that is gone.
func (c *convergence) recordClaims(failure error) error {
	if _, ok := errors.AsType[*driver.RecordFirstError](failure); ok || apierrors.IsConflict(failure) || driver.MayNotAct(failure) {
		return failure
	}
	var found []driver.Object
	for _, o := range c.spec.Objects {
		if uid := c.claimUID(o); o.Kind == objects.KindClaim && uid != "" && uid != o.UID {
			o.UID = uid
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		return failure
	}
	return c.recordAndFail(failure, found...)
}

// recordFirst ends the call: the caller records the objects, and calls again.
func (c *convergence) recordFirst(changed ...driver.Object) error {
	return c.recordAndFail(nil, changed...)
}

// recordAndFail ends the call, which has failed if a failure is given: the caller records the objects.
func (c *convergence) recordAndFail(failure error, changed ...driver.Object) error {
	all := slices.Clone(c.spec.Objects)
	for _, o := range changed {
		all = slices.DeleteFunc(all, func(have driver.Object) bool {
			return have.Kind == o.Kind && (have.Name == o.Name || o.Kind == objects.KindSecret) // there is one Secret
		})
		all = append(all, o)
	}
	return &driver.RecordFirstError{Objects: all, Failure: failure}
}

// stop asks the guest to shut down, until the time at which a stop is forced.
func (c *convergence) stop(ctx context.Context) error {
	grace := int64(objects.MinimalGrace)
	now := c.driver.Clock.Now()
	switch {
	case c.spec.StopBy.IsZero():
		grace = maxGrace
	case now.Before(c.spec.StopBy):
		grace = int64(math.Ceil(c.spec.StopBy.Sub(now).Seconds())) + objects.QuitMargin
	}
	c.setGracePeriod(ctx, grace)
	if err := c.deletePod(ctx, grace); err != nil {
		return err
	}
	return c.Read(ctx)
}

// setGracePeriod has a machine keep to another grace period than the one that its pod was made with.
// One that cannot be reached keeps to that, and is killed if the new one is shorter.
func (c *convergence) setGracePeriod(ctx context.Context, seconds int64) {
	kept := c.Settings().GraceSecs
	at, ok := instance.MachineOf(c.Pod)
	if !ok || seconds <= kept && seconds > kept-objects.QuitMargin {
		return
	}
	if err := c.driver.machines.SetGracePeriod(ctx, at, time.Duration(seconds)*time.Second); err != nil {
		c.driver.Log.Info("Machine keeps to the grace period of its pod", "pod", c.Key, "seconds", kept, "cause", err.Error())
	}
}

// maxGrace, in seconds, is for a stop that is never forced.
const maxGrace = 7 * 24 * 3600

// describe describes the server as the call leaves it, with the record that its status should have.
func (c *convergence) describe() driver.Server {
	s := c.Server()
	s.Objects = c.objects()
	if c.Pod != nil && c.Pod.DeletionTimestamp == nil && c.End() == nil && !c.IsGated() && !c.spec.PowerOnly {
		s.Pending = c.pendingFields()
	}
	s.Refused = c.refusedImage()
	return s
}

// objects returns the record of the server's objects, with the UIDs of those that exist now. A pod with
// its scheduling gate is left out: it cannot be lost, because it runs nothing.
func (c *convergence) objects() []driver.Object {
	all := slices.DeleteFunc(slices.Clone(c.spec.Objects), func(o driver.Object) bool { return o.Kind == objects.KindBudget && c.hasNoBudget })
	for n, o := range all {
		switch {
		case o.Kind == objects.KindClaim:
			all[n].UID = cmp.Or(c.claimUID(o), o.UID)
		case o.Kind == objects.KindPod && c.Pod != nil && !c.IsGated() && c.Pod.Annotations[objects.AnnotationNonce] == o.Nonce:
			all[n].UID = c.Pod.UID
		case o.Kind == objects.KindBudget && c.budget != nil:
			all[n].UID = c.budget.UID
		case o.Kind == objects.KindSecret && c.secret != nil && c.secret.Name == o.Name:
			all[n].UID = c.secret.UID
		}
	}
	return all
}
