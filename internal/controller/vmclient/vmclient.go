// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmclient reads and writes VirtualMachines, and remembers the writes of this process: the cache
// may lag behind them, and events repeat them. Start with Client.
package vmclient

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// callTimeout bounds one call to the API.
const callTimeout = 30 * time.Second

// Client keeps this process's last write of each object until the cache has it.
type Client struct {
	// Client reads from the cache and writes to the API.
	client.Client
	// Live reads from the API.
	Live client.Reader

	mu      sync.Mutex
	written map[types.NamespacedName]*api.VirtualMachine
	// doubted are the objects whose last write the API may have lost.
	doubted map[types.NamespacedName]bool
	// reported has the last status that was sent for each object, whether or not the API has answered.
	reported map[types.NamespacedName]reportedStatus
}

// New returns a Client.
func New(cached client.Client, live client.Reader) *Client {
	return &Client{
		Client: cached, Live: live, written: map[types.NamespacedName]*api.VirtualMachine{},
		doubted: map[types.NamespacedName]bool{}, reported: map[types.NamespacedName]reportedStatus{},
	}
}

// reportedStatus identifies a status that this process has written.
type reportedStatus struct {
	at int64 // the time of the status in microseconds, the precision of the API
	// digest is the digest of the status in the API's answer, and zero before the answer. Before
	// the answer only the time is compared, since the API may change a status when it stores it.
	digest [sha256.Size]byte
}

// Read returns the VirtualMachine, or nil if there is none. The cache may lag behind this
// process's last write, so Read returns the newer object of the two.
func (c *Client) Read(ctx context.Context, key types.NamespacedName) (*api.VirtualMachine, error) {
	vm := &api.VirtualMachine{}
	if err := c.Get(ctx, key, vm); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if c.isDoubted(key) {
		live, err := c.readLive(ctx, key)
		if err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		c.recordWrite(live)
	}
	return c.newerOf(vm), nil
}

func (c *Client) readLive(ctx context.Context, key types.NamespacedName) (*api.VirtualMachine, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	live := &api.VirtualMachine{}
	return live, c.Live.Get(ctx, key, live)
}

// Confirm verifies by a live read that vm is the object in the API, and returns a conflict if it is older.
func (c *Client) Confirm(ctx context.Context, vm *api.VirtualMachine) error {
	live, err := c.readLive(ctx, keyOf(vm))
	switch {
	case err != nil:
		return err
	case live.UID != vm.UID:
		return apierrors.NewNotFound(api.Resource("virtualmachines"), vm.Name)
	case live.ResourceVersion != vm.ResourceVersion:
		c.recordWrite(live)
		return apierrors.NewConflict(api.Resource("virtualmachines"), vm.Name, errors.New("the cache is behind"))
	}
	return nil
}

// UpdateStatus writes a status, even if ctx has ended. isOvertaken reports whether another process has
// already written a later status.
func (c *Client) UpdateStatus(ctx context.Context, vm *api.VirtualMachine) (isOvertaken bool, err error) {
	c.recordReport(vm, false)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := c.Status().Update(ctx, vm); err != nil {
		return false, err
	}
	c.recordReport(vm, true)
	return c.keepWritten(ctx, vm), nil
}

// PatchMetadata writes an object's finalizers and binding, the only metadata that Drover changes,
// and returns it as written. It fails with a conflict if the object was changed meanwhile.
func (c *Client) PatchMetadata(ctx context.Context, base, wanted *api.VirtualMachine) (*api.VirtualMachine, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	change := map[string]any{"resourceVersion": base.ResourceVersion, "finalizers": wanted.Finalizers}
	if bound := wanted.Annotations[api.AnnotationBound]; bound != base.Annotations[api.AnnotationBound] {
		change["annotations"] = map[string]string{api.AnnotationBound: bound}
	}
	content, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return base, err
	}
	if err := c.Patch(ctx, wanted, client.RawPatch(types.MergePatchType, content)); err != nil {
		return base, err
	}
	_ = c.keepWritten(ctx, wanted) // IsForeign will notice a later status in an event
	return wanted, nil
}

// IsForeign takes note of an event. It reports whether the event brings a status that this process has not
// written, or an object that lacks a write of this process, which the API may have lost.
func (c *Client) IsForeign(old, cached *api.VirtualMachine) bool {
	c.dropSeenWrite(cached)
	isDoubted := c.doubtWrite(old, cached)
	return isDoubted || c.isForeignStatus(old, cached)
}

// Forget drops everything that is kept about an object.
func (c *Client) Forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, key)
	delete(c.doubted, key)
	delete(c.reported, key)
}

// IsFinalized reports whether the VirtualMachine is being deleted and no longer has
// Drover's finalizer.
func IsFinalized(vm *api.VirtualMachine) bool {
	return vm.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(vm, api.FinalizerServer)
}

func (c *Client) dropSeenWrite(cached *api.VirtualMachine) { _ = c.newerOf(cached) }

// newerOf returns the newer of the cached object and this process's last write. It drops an older write.
func (c *Client) newerOf(cached *api.VirtualMachine) *api.VirtualMachine {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(cached)
	own := c.written[key]
	if own == nil {
		return cached
	}
	if own.UID == cached.UID && IsFinalized(own) {
		return own // the write that removes the finalizer deletes the object, so its answer lacks a new version
	}
	order, err := resourceversion.CompareResourceVersion(own.ResourceVersion, cached.ResourceVersion)
	if err != nil || order <= 0 || own.UID != cached.UID {
		delete(c.written, key)
		delete(c.doubted, key)
		return cached
	}
	return own.DeepCopy()
}

// keepWritten keeps an object that was just written until the cache has it. The cache may already have it, if
// the event came before the answer. isOvertaken reports whether the cache even has a later status of another
// process.
func (c *Client) keepWritten(ctx context.Context, vm *api.VirtualMachine) (isOvertaken bool) {
	c.recordWrite(vm)
	cached := &api.VirtualMachine{}
	if err := c.Get(ctx, keyOf(vm), cached); err != nil {
		return false
	}
	c.dropSeenWrite(cached)
	return c.isForeignStatus(vm, cached)
}

// recordWrite keeps an object that the API has just returned.
func (c *Client) recordWrite(vm *api.VirtualMachine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(vm)
	c.written[key] = vm
	delete(c.doubted, key)
}

// doubtWrite makes the next Read verify the last write of an object, if the cache does not have the write and
// the event does not bring a newer version. Such an event comes from a list: of an API server that lags
// behind, or of an API that was restored from a backup and has lost the write.
func (c *Client) doubtWrite(old, cached *api.VirtualMachine) (doubted bool) {
	order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, old.ResourceVersion)
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(cached)
	if err != nil || order > 0 || c.written[key] == nil {
		return false
	}
	c.doubted[key] = true
	return true
}

func (c *Client) isDoubted(key types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubted[key]
}

// recordReport records a status that is about to be written, or that the API has stored.
func (c *Client) recordReport(vm *api.VirtualMachine, isStored bool) {
	r := reportedStatus{at: vm.Status.LastUpdateTime.UnixMicro()}
	if isStored {
		r.digest = digestOf(&vm.Status)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reported[keyOf(vm)] = r
}

// isForeignStatus reports whether an event brings a status that this process has not written: one that was
// changed by hand, or one of the previous leader. The latter matters because this process may have reconciled
// the VM on the basis of an older status, and found that there was nothing to write.
func (c *Client) isForeignStatus(old, cached *api.VirtualMachine) bool {
	if equality.Semantic.DeepEqual(&old.Status, &cached.Status) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(cached)
	if c.written[key] != nil {
		return false // a later write of this process
	}
	own, ok := c.reported[key]
	if at := cached.Status.LastUpdateTime; !ok || at == nil || at.UnixMicro() != own.at {
		return true
	}
	return own.digest != [sha256.Size]byte{} && own.digest != digestOf(&cached.Status)
}

// digestOf returns the digest of a status as the API sends it.
func digestOf(status *api.VirtualMachineStatus) [sha256.Size]byte {
	content, err := json.Marshal(status)
	if err != nil {
		content = nil // cannot happen for a status that came from JSON
	}
	return sha256.Sum256(content)
}

func keyOf(vm *api.VirtualMachine) types.NamespacedName { return client.ObjectKeyFromObject(vm) }
