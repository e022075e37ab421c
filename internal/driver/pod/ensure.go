// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/objects"
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
		c := newConvergence(d, spec)
		if err := c.recordUnknown(ctx); err != nil {
			return err
		}
		if err := c.prepareObjects(ctx); err != nil {
			return err
		}
		if err := c.convergeServer(ctx); err != nil {
			return c.records.recordClaims(err)
		}
		s = c.describeServer()
		return nil
	})
	return s, err
}

// call has the state that all parts of one call of Ensure share.
type call struct {
	driver *Driver
	spec   driver.ServerSpec // with the objects that the VirtualMachine's status has recorded
	server *instance.Instance
	writer writer // of the server's objects
}

// convergence is one call of Ensure.
type convergence struct {
	*call
	records records
	claims  claims
	budget  budget
	// digests are the digests of the secret texts of the spec. If noDigests is set, they are not known.
	digests   objects.Digests
	noDigests error
	// secret is the Secret of the pod if this call has made it.
	secret *corev1.Secret
}

// newConvergence returns the state of a call of Ensure before anything is read.
func newConvergence(d *Driver, spec driver.ServerSpec) *convergence {
	server := d.reader.New(spec)
	known := records{&call{driver: d, spec: spec, server: server, writer: writer{server: server, client: d.Client, epoch: spec.Epoch}}}
	return &convergence{call: known.call, records: known, claims: claims{known.call, known}, budget: budget{call: known.call, records: known}}
}

// recordUnknown records the objects of a new server before it looks for any. If one exists already,
// the next call finds it, and refuses it unless it has the recorded nonce.
func (c *convergence) recordUnknown(ctx context.Context) error {
	if c.spec.ID != "" || len(c.spec.Objects) > 0 {
		return nil
	}
	if err := c.driver.Objects.CheckSpec(c.spec); err != nil {
		return err
	}
	return objects.RecordFirst(c.spec.Objects, nil, c.records.newIntents(ctx)...)
}

// prepareObjects reads the objects, refuses those that Ensure must not touch, and removes a deleted pod that has
// ended.
func (c *convergence) prepareObjects(ctx context.Context) error {
	if err := c.server.Read(ctx); err != nil {
		return err
	}
	if err := c.restoreLabels(ctx); err != nil {
		return err
	}
	if err := c.checkServer(); err != nil {
		return err
	}
	if err := c.checkIdentity(ctx); err != nil {
		return err
	}
	c.records.recordMadeDisks()
	if err := c.writer.recordRefusal(ctx); err != nil {
		return err
	}
	if c.server.End() != nil && c.server.Pod.DeletionTimestamp != nil { // a drain or the deletion of the namespace may wait for it
		if err := c.removePod(ctx); err != nil {
			return err
		}
	}
	c.digests, c.noDigests = c.driver.machines.Digests(ctx, c.spec)
	if c.server.Exists() && c.spec.Power == driver.PowerOff { // stopping needs neither digests nor a valid spec
		return nil
	}
	return cmp.Or(c.noDigests, c.driver.Objects.CheckSpec(c.spec))
}

// checkServer refuses a server that is another one, was released, or that a later leader has changed.
func (c *convergence) checkServer() error {
	exists := c.server.Exists()
	switch {
	case c.spec.ID != "" && (c.spec.ID != c.server.ID() || !exists):
		return driver.Errorf(driver.ErrNotFound, "there is no server %s of UID %s", c.spec.ID, c.server.UID)
	case exists && c.server.IsRetained():
		return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
			"the server %s was released: remove the label %s from its PVCs and its pod to have it back", c.server.ID(), objects.LabelRetained))
	}
	return c.writer.checkEpochs()
}

// checkIdentity refuses objects that the VirtualMachine's status has not recorded. It removes a foreign
// pod that still has its scheduling gate and so has run nothing: a deposed leader may have left it. It
// also removes the finalizer of a foreign pod that others have deleted, once the pod has ended.
func (c *convergence) checkIdentity(ctx context.Context) error {
	if c.server.Claims.Root() != nil {
		if err := c.records.check(objects.KindClaim, c.server.Claims.Root()); err != nil {
			return err
		}
	}
	if c.server.Pod == nil {
		return nil
	}
	err := c.records.check(objects.KindPod, c.server.Pod)
	if err == nil || !objects.IsGated(c.server.Pod) && (c.server.Pod.DeletionTimestamp == nil || c.server.End() == nil) {
		return err
	}
	if err := c.writer.forgetPod(ctx); err != nil || c.server.Pod == nil {
		return err
	}
	return driver.Errorf(driver.ErrRetry, "the pod %s is not this VirtualMachine's, and its kubelet has yet to remove it", c.server.Key)
}

// convergeServer takes the steps that are possible without waiting. A disk that cannot grow does not keep the
// other steps from being taken.
func (c *convergence) convergeServer(ctx context.Context) error {
	if err := c.checkDeletedClaim(); err != nil {
		return err
	}
	if err := c.convergePower(ctx); err != nil || c.spec.PowerOnly {
		return err
	}
	if err := c.budget.ensure(ctx); err != nil {
		return err
	}
	c.driver.reader.NoteBudget(c.server.UID)
	if c.server.Pod != nil && (c.server.End() != nil || c.isToStop()) {
		return nil
	}
	return c.claims.growDisks(ctx)
}

// convergePower takes the steps to the desired power state: of the root disk, the pod, and the guest. A
// pod that is to stop needs no disk.
func (c *convergence) convergePower(ctx context.Context) error {
	isStopping := c.server.Pod != nil && !objects.IsGated(c.server.Pod) && c.server.End() == nil && c.isToStop()
	if !c.spec.Ephemeral && !isStopping {
		if err := c.claims.ensureClaim(ctx, objects.Disk{Name: objects.RootDisk, Bytes: c.spec.RootDiskBytes}); err != nil {
			return err
		}
	}
	if c.server.End() != nil && c.spec.Power != driver.PowerOff { // the next pod has its name
		if err := c.clearEndedPod(ctx); err != nil {
			return err
		}
	}
	if err := c.checkLost(); err != nil {
		return err
	}
	if c.server.Pod == nil {
		if c.spec.Power == driver.PowerOff && !c.spec.Ephemeral {
			return nil
		}
		if err := c.createPod(ctx); err != nil {
			return err
		}
	}
	return c.convergePod(ctx)
}

// checkDeletedClaim refuses to end or replace a pod for another run if that would complete the deletion of
// a PVC by others. A user may still stop the server.
func (c *convergence) checkDeletedClaim() error {
	claim := c.server.Claims.DeletedClaim(c.server.Pod)
	if claim == nil || c.spec.Power == driver.PowerOff || c.server.End() == nil && !c.isToStop() {
		return nil
	}
	return objects.DeletedClaimError(claim)
}

// clearEndedPod removes a pod that has ended, unless the next one would fail for the same reason.
func (c *convergence) clearEndedPod(ctx context.Context) error {
	if err := c.checkImageSize(ctx); err != nil {
		return err
	}
	return c.removePod(ctx)
}

// convergePod takes the steps of a pod that exists: it removes its gate, stops, replaces or changes it.
func (c *convergence) convergePod(ctx context.Context) error {
	switch {
	case c.server.End() != nil, objects.IsGated(c.server.Pod) && c.spec.Power == driver.PowerOff:
		return nil
	case objects.IsGated(c.server.Pod) && c.server.Pod.DeletionTimestamp == nil && !c.spec.PowerOnly:
		return c.removeGate(ctx)
	case c.isToStop():
		return c.stopPod(ctx)
	case ends.HasOnlyMachineEnded(c.server.Pod):
		return c.writer.updatePod(ctx, objects.SetEndDeadline)
	case !c.spec.PowerOnly && !ends.HasContainer(c.server.Pod) && len(c.pendingFields()) > 0:
		// The pod may wait for something that the spec no longer asks for. If its node starts it in the
		// meantime, the guest is shut down.
		return c.writer.endPod(ctx, objects.ReadSettings(c.server.Pod).GraceSecs)
	}
	return c.changePod(ctx)
}

// changePod changes a pod that goes on.
func (c *convergence) changePod(ctx context.Context) error {
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

// isToStop reports whether the run of the pod is to end. A pod that somebody has deleted ends anyway.
func (c *convergence) isToStop() bool {
	restart := c.spec.RestartRun != "" && c.spec.RestartRun == string(c.server.Pod.UID)
	return c.spec.Power == driver.PowerOff || restart || c.server.Pod.DeletionTimestamp != nil
}

// updateMeta gives the pod the metadata that follows the spec, and records in which boot of its node it runs.
func (c *convergence) updateMeta(ctx context.Context) error {
	set := func(p *corev1.Pod) {
		c.driver.Objects.SetMeta(p, c.spec, c.server.Claims.Root())
		if boot := c.server.UnrecordedBoot(); boot != "" {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, objects.AnnotationBoot, boot)
		}
	}
	wanted := c.server.Pod.DeepCopy()
	set(wanted)
	if equality.Semantic.DeepEqual(c.server.Pod.ObjectMeta, wanted.ObjectMeta) {
		return nil
	}
	return c.writer.updatePod(ctx, set)
}

// adoptPod reads the pod after its creation found the name taken, and refuses a foreign object. The pod is
// from an earlier try or another leader.
func (c *convergence) adoptPod(ctx context.Context) error {
	if err := c.server.Read(ctx); err != nil {
		return err
	}
	if c.server.Pod == nil {
		return objects.TakenError(objects.KindPod, c.server.Key)
	}
	if err := c.checkIdentity(ctx); err != nil || c.server.Pod != nil {
		return err
	}
	return driver.Errorf(driver.ErrRetry, "the pod %s of another leader was removed: the next one is made after that", c.server.Key)
}

// removePod removes a pod that has ended or has its scheduling gate. A proven end is recorded first: in the
// status of the VirtualMachine, and on the PVC. The pod object remains until its kubelet has unmounted the
// volumes: Server.IsLeaving.
func (c *convergence) removePod(ctx context.Context) error {
	if r := c.records.find(objects.KindPod, c.server.Key.Name); c.server.End() != nil && r != nil && !r.Ended {
		ended := *r
		ended.UID, ended.Ended, ended.Images = c.server.Pod.UID, true, endedImages(c.server.Pod, r.Images)
		return objects.RecordFirst(c.spec.Objects, nil, ended)
	}
	return c.writer.forgetPod(ctx)
}

// checkLost returns an error if nothing tells whether the machine runs, because its container or its pod
// is lost. A pod that the PVC does not record still had its scheduling gate, and a pod whose record lacks a
// UID was never seen.
func (c *convergence) checkLost() error {
	r := c.records.find(objects.KindPod, c.server.Key.Name)
	if c.server.Pod == nil && c.spec.Ephemeral && r != nil && r.UID != "" && !r.Ended && r.UID != c.server.Asserted {
		return objects.LostError(instance.PodLostText(c.server.Key))
	}
	return objects.LostError(c.server.Lost())
}

// createPod creates the pod, once the intent is recorded and its PVCs exist. The pod runs nothing yet.
func (c *convergence) createPod(ctx context.Context) error {
	if c.noDigests != nil {
		return c.noDigests
	}
	if !c.records.isPodIntended() {
		return objects.RecordFirst(c.spec.Objects, nil, c.records.newIntents(ctx)...)
	}
	for _, v := range c.spec.Volumes {
		if err := c.claims.ensureClaim(ctx, objects.Disk{Name: v.Name, Bytes: v.SizeBytes}); err != nil {
			return err
		}
	}
	if err := c.budget.ensure(ctx); err != nil {
		return err
	}
	r := c.records.find(objects.KindPod, c.server.Key.Name)
	on := c.driver.kvm.Choose(ctx, c.spec.Placement)
	pod, err := c.driver.Objects.NewPod(c.claims.fittedSpec(), objects.Run{Nonce: r.Nonce, Images: r.Images, Disks: c.claims.diskSettings(), Digests: c.digests, Made: objects.MadeDisks(c.spec), Root: c.server.Claims.Root(), KVM: on, Ungated: !objects.HasGate(c.spec)})
	if err != nil {
		return err
	}
	created, err := c.driver.Client.Pods(c.server.Key.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return c.adoptPod(ctx)
	}
	if err != nil {
		return objects.Explain("create", objects.KindPod, c.server.Key, err)
	}
	c.server.Note(created)
	c.server.Pod = created
	return c.checkCreated(ctx)
}

// checkCreated removes a pod that something in the cluster has changed at its creation, and returns a
// failure. Without one, the pod would be replaced again and again, since it has another spec.
func (c *convergence) checkCreated(ctx context.Context) error {
	failure, uid := objects.CheckStorage(c.server.Pod, c.spec), c.server.Pod.UID
	if changed := c.pendingFields(); len(changed) > 0 {
		failure = objects.ChangedError(c.server.Key, changed)
	}
	if failure == nil {
		return nil
	}
	err := retryConflicts(func() error {
		if err := c.server.Read(ctx); err != nil || c.server.Pod == nil || c.server.Pod.UID != uid {
			return err
		}
		return c.writer.forgetPod(ctx)
	})
	if err != nil {
		c.driver.Log.Info("Pod that was changed at its creation is not removed yet", "pod", c.server.Key, "cause", err.Error())
	}
	return failure
}

// removeGate removes the scheduling gate of the pod, after the Secret is made and the PVC has recorded the
// pod.
func (c *convergence) removeGate(ctx context.Context) error {
	if c.isGatedOutdated(ctx) {
		return c.replacePod(ctx, nil)
	}
	if err := c.ensureSecret(ctx); err != nil {
		return err
	}
	if err := c.claims.markClaims(ctx); err != nil {
		return err
	}
	return c.writer.updatePod(ctx, objects.RemoveGate)
}

// pendingFields names the fields of the spec that wait for the next pod. The image of a root disk that was
// made never changes, so it is not among them: see objects.RefusedImage.
func (c *convergence) pendingFields() []string {
	has, wants := objects.ReadSettings(c.server.Pod), c.driver.Objects.Settings(c.spec, c.digests)
	if r := c.records.find(objects.KindClaim, c.server.Key.Name); has.Kernel == nil && wants.Kernel == nil && r != nil && r.Made {
		wants.Image, wants.Checksum = has.Image, has.Checksum
	}
	return objects.PendingFields(has, wants)
}

// isGatedOutdated reports whether a gated pod differs from one that would be made now. The gated pod of an
// ephemeral server may be old, since it exists while the server is off.
func (c *convergence) isGatedOutdated(ctx context.Context) bool {
	switch {
	case len(c.pendingFields()) > 0:
		return true
	case !c.spec.Ephemeral:
		return false
	case c.spec.Image.PullPolicy == driver.PullAlways:
		return true
	}
	return c.driver.kvm.Choose(ctx, c.spec.Placement).Resource != objects.RequestedOf(c.server.Pod, c.driver.kvm.Resource)
}

// ensureSecret makes the Secret of a pod. It reads no Secret. If an unrecorded one of the name exists, a
// tenant may have made it: then the pod is replaced by one whose Secret has another name, and the call
// fails.
func (c *convergence) ensureSecret(ctx context.Context) error {
	name := objects.SecretOf(c.server.Pod)
	r, pod := c.records.find(objects.KindSecret, name), c.records.find(objects.KindPod, c.server.Key.Name)
	switch {
	case r != nil && r.UID != "",
		c.driver.machines.HasAnswered(c.server.Pod.UID),                             // with the keys in it
		!objects.IsGated(c.server.Pod) && pod != nil && pod.UID == c.server.Pod.UID: // an earlier call has made it before it recorded the pod
		c.driver.secrets.LoadOrStore(c.server.Pod.UID, nil)
		return nil
	case r == nil, objects.IsGated(c.server.Pod) && pod != nil && pod.Ended:
		return c.replacePod(ctx, nil)
	}
	if made, ok := c.driver.secrets.Load(c.server.Pod.UID); ok {
		c.secret = made
		return nil
	}
	control, err := c.driver.machines.NewEnd(ctx, c.server.UID, c.server.Pod.Annotations[objects.AnnotationNonce])
	if err != nil {
		return objects.Explain("make the keys of", objects.KindPod, c.server.Key, err)
	}
	secret := c.driver.Objects.NewSecret(c.spec, c.server.Pod, r.Nonce, control)
	created, err := c.driver.Client.Secrets(c.server.Key.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	key := types.NamespacedName{Namespace: c.server.Key.Namespace, Name: name}
	if apierrors.IsAlreadyExists(err) {
		return c.replacePod(ctx, objects.TakenError(objects.KindSecret, key))
	}
	if err != nil {
		return objects.Explain("create", objects.KindSecret, key, err)
	}
	c.secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: created.Name, UID: created.UID}}
	c.driver.secrets.Store(c.server.Pod.UID, c.secret)
	return nil
}

// replacePod removes a pod, at once if it has its scheduling gate, and else once it has ended. A later
// call creates another pod. With a failure, that call has to wait.
func (c *convergence) replacePod(ctx context.Context, failure error) error {
	if err := c.removePod(ctx); err != nil {
		return err
	}
	return objects.RecordFirst(c.spec.Objects, failure, c.records.newPodIntents(ctx)...)
}

// stopPod deletes the pod, so that its guest shuts down. The grace period lasts until the stop is forced.
func (c *convergence) stopPod(ctx context.Context) error {
	grace := int64(objects.MinimalGrace)
	now := c.driver.Clock.Now()
	switch {
	case c.spec.StopBy.IsZero():
		grace = maxGrace
	case now.Before(c.spec.StopBy):
		grace = int64(math.Ceil(c.spec.StopBy.Sub(now).Seconds())) + objects.QuitMargin
	}
	c.setGracePeriod(ctx, grace)
	return c.writer.endPod(ctx, grace)
}

// setGracePeriod gives a machine another grace period than its pod was made with. A machine that cannot be
// reached keeps the old one, and is killed if the new one is shorter.
func (c *convergence) setGracePeriod(ctx context.Context, seconds int64) {
	kept := objects.ReadSettings(c.server.Pod).GraceSecs
	at, ok := instance.MachineOf(c.server.Pod)
	if !ok || seconds <= kept && seconds > kept-objects.QuitMargin {
		return
	}
	if err := c.driver.machines.SetGracePeriod(ctx, at, time.Duration(seconds)*time.Second); err != nil {
		c.driver.Log.Info("Machine keeps to the grace period of its pod", "pod", c.server.Key, "seconds", kept, "cause", err.Error())
	}
}

// maxGrace, in seconds, is the grace period of a stop that is never forced.
const maxGrace = 7 * 24 * 3600

// describeServer returns the server as the call leaves it, with the record that the status should have.
func (c *convergence) describeServer() driver.Server {
	s := c.server.Server()
	s.Objects = c.currentObjects()
	if c.server.Pod != nil && c.server.Pod.DeletionTimestamp == nil && c.server.End() == nil && !objects.IsGated(c.server.Pod) && !c.spec.PowerOnly {
		s.Pending = c.pendingFields()
	}
	s.Refused = objects.RefusedImage(c.spec.Image, c.records.find(objects.KindClaim, c.server.Key.Name))
	return s
}

// currentObjects returns the record of the server's objects, with the UIDs of those that exist now. The
// UID of a pod with its scheduling gate is left out, since such a pod runs nothing and cannot be lost.
func (c *convergence) currentObjects() []driver.Object {
	all := slices.DeleteFunc(slices.Clone(c.spec.Objects), func(o driver.Object) bool { return o.Kind == objects.KindBudget && c.budget.isGone })
	for n, o := range all {
		switch {
		case o.Kind == objects.KindClaim:
			all[n].UID = cmp.Or(c.records.claimUID(o), o.UID)
		case o.Kind == objects.KindPod && c.server.Pod != nil && !objects.IsGated(c.server.Pod) && c.server.Pod.Annotations[objects.AnnotationNonce] == o.Nonce:
			all[n].UID = c.server.Pod.UID
		case o.Kind == objects.KindBudget && c.budget.have != nil:
			all[n].UID = c.budget.have.UID
		case o.Kind == objects.KindSecret && c.secret != nil && c.secret.Name == o.Name:
			all[n].UID = c.secret.UID
		}
	}
	return all
}
