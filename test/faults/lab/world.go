// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/fleet"
)

// World looks like a cluster to the controllers in it, and has a separate engine. It is
// for one run.
type World struct {
	*Lab
	// Name is the name of the world, and of the namespace of its VirtualMachines.
	Name string
	// System is the namespace that replaces kube-system, and has the Lease.
	System string
	// Dir has the engine's folder, the journal and the logs.
	Dir string
	// ClusterID is the cluster's id, which its servers have in a label or record.
	ClusterID string

	stop      context.CancelFunc
	intercept Interceptor
	disturbed disturbance

	mu       sync.Mutex
	begin    time.Time     // of the period to judge
	changed  chan struct{} // closed at each change of the fields below
	now      map[string]*api.VirtualMachine
	versions []*api.VirtualMachine
	gone     map[string]time.Time // when the watch reported a deletion, by UID; see wasOvertaken
	writes   []string             // requests that change something, except for Leases
	copies   []string             // IDs of servers that the test created
	removed  map[string]string    // names of servers that the test removed, by their IDs
	replayed int                  // number of decisions
}

// NewWorld makes a world. The caller must Close it.
func (l *Lab) NewWorld(ctx context.Context) (*World, error) {
	n := l.count.Add(1)
	name := fmt.Sprintf("world-%d", n)
	w := &World{
		Lab: l, begin: time.Now(), Name: name, System: fmt.Sprintf("sys-%07d", n), Dir: filepath.Join(l.dir, name),
		changed: make(chan struct{}), now: map[string]*api.VirtualMachine{}, gone: map[string]time.Time{}, removed: map[string]string{},
	}
	if err := os.Mkdir(w.Dir, 0o711); err != nil { // the machines' user must be able to search it
		return nil, err
	}
	var err error
	if w.ClusterID, err = l.AddNamespace(ctx, w.System); err != nil {
		return nil, err
	}
	if _, err = l.AddNamespace(ctx, name); err != nil {
		return nil, err
	}
	l.worlds.byName.Store(name, w)
	if err := w.createSecret(ctx); err != nil {
		return nil, err
	}
	return w, w.follow(ctx)
}

// SecretName and SecretKey name the user-data whose content is Secret.
const (
	SecretName = "user-data"
	SecretKey  = "data"
)

func (w *World) createSecret(ctx context.Context) error {
	s := &corev1.Secret{StringData: map[string]string{SecretKey: "#cloud-config\npassword: " + Secret}}
	s.Name = SecretName
	_, err := w.KubeClient.CoreV1().Secrets(w.Name).Create(ctx, s, metav1.CreateOptions{})
	return err
}

// changedText is in the Secret after ChangeSecret.
const changedText = "changed"

// ChangeSecret adds text to the Secret as a user does.
func (w *World) ChangeSecret(ctx context.Context) error {
	secrets := w.KubeClient.CoreV1().Secrets(w.Name)
	s, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.Data[SecretKey] = append(s.Data[SecretKey], "\n# "+changedText...)
	_, err = secrets.Update(ctx, s, metav1.UpdateOptions{})
	return err
}

// DeleteNamespace requests the deletion of the namespace of the VirtualMachines, and waits until Kubernetes
// has requested the deletion of each VirtualMachine.
func (w *World) DeleteNamespace(ctx context.Context) error {
	if err := w.KubeClient.CoreV1().Namespaces().Delete(ctx, w.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return w.WaitFor(ctx, "deletions", func(all map[string]*api.VirtualMachine) error {
		for name, vm := range all {
			if vm.DeletionTimestamp == nil {
				return fmt.Errorf("%s is not being deleted", name)
			}
		}
		return nil
	})
}

// WaitNamespaceGone waits until the namespace of the VirtualMachines is gone. They must be gone already.
func (w *World) WaitNamespaceGone(ctx context.Context) error {
	return w.WaitFor(ctx, "namespace "+w.Name, func(map[string]*api.VirtualMachine) error {
		ns, err := w.KubeClient.CoreV1().Namespaces().Get(ctx, w.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it exists: %v: %w", ns.Status, err)
	})
}

// Close ends the watch and removes the files. The namespaces stay until the lab is closed.
func (w *World) Close() error {
	w.stop()
	w.worlds.byName.Delete(w.Name)
	return os.RemoveAll(w.Dir)
}

func (w *World) virtualMachines() framework.VMs { return w.VMsIn(w.Name) }

// rewatchDelay is the pause between the end of a watch and the next one.
const rewatchDelay = 50 * time.Millisecond

// follow records every version of every VirtualMachine, without managedFields. It watches again
// when a watch ends, as after a restart of the API server, or after an hour.
func (w *World) follow(ctx context.Context) error {
	ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
	changes, err := w.listAndWatch(ctx)
	if err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil {
			if err == nil {
				w.record(changes)
			}
			time.Sleep(rewatchDelay)
			changes, err = w.listAndWatch(ctx)
		}
	}()
	return nil
}

// listAndWatch records the existing VirtualMachines, and watches changes from then on.
func (w *World) listAndWatch(ctx context.Context) (watch.Interface, error) {
	list, err := w.virtualMachines().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.now = map[string]*api.VirtualMachine{}
	for n := range list.Items {
		vm := &list.Items[n]
		vm.ManagedFields = nil
		w.now[vm.Name], w.versions = vm, append(w.versions, vm)
		delete(w.gone, string(vm.UID)) // it may be back after etcd was restored
	}
	w.signal()
	w.mu.Unlock()
	return w.virtualMachines().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
}

// record records changes until the watch ends.
func (w *World) record(changes watch.Interface) {
	defer changes.Stop()
	for change := range changes.ResultChan() {
		vm, ok := change.Object.(*api.VirtualMachine)
		if !ok {
			return
		}
		vm.ManagedFields = nil
		w.mu.Lock()
		if change.Type == watch.Deleted {
			delete(w.now, vm.Name)
			if !wasOvertaken(vm) {
				w.gone[string(vm.UID)] = time.Now()
			}
		} else {
			w.now[vm.Name], w.versions = vm, append(w.versions, vm)
		}
		w.signal()
		w.mu.Unlock()
	}
}

// wasOvertaken reports whether the API server has removed a VirtualMachine in spite of its
// finalizer: it had read the object for the deletion before the finalizer was written. Drover
// cannot know this when it creates the server. The sweep removes the server or, with
// deletionPolicy Retain, releases it.
func wasOvertaken(deleted *api.VirtualMachine) bool {
	return deleted.DeletionTimestamp == nil && slices.Contains(deleted.Finalizers, api.FinalizerServer)
}

// Forget drops the history, so that a world can be used for long. Call it after Judge, when
// no VirtualMachine exists.
func (w *World) Forget(ctx context.Context) error {
	w.mu.Lock()
	w.begin, w.versions, w.writes = time.Now(), nil, nil
	w.gone, w.removed = map[string]time.Time{}, map[string]string{}
	w.mu.Unlock()
	return w.KubeClient.EventsV1().Events(w.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// since returns the begin of the period to judge, which Forget changes.
func (w *World) since() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begin
}

// Existing returns the VirtualMachines by name.
func (w *World) Existing() map[string]*api.VirtualMachine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.now)
}

// Lease returns the Lease of the world's replicas.
func (w *World) Lease() fleet.Lease { return fleet.Lease{Kube: w.KubeClient, Namespace: w.System} }

// signal wakes goroutines that wait for a change. The caller must hold the lock.
func (w *World) signal() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// WaitFor waits until check, which sees the VirtualMachines by name, returns nil.
func (w *World) WaitFor(ctx context.Context, what string, check func(map[string]*api.VirtualMachine) error) error {
	err := assert.Poll(ctx, what, func() error { return w.checkAtChanges(ctx, check) })
	if err == nil || ctx.Err() != nil {
		return err
	}
	return &NotConvergedError{what, err}
}

// checkAtChanges calls check at once and after each change, for a few seconds. Users must not notice
// a change late, since some go on in the middle of Drover's work.
func (w *World) checkAtChanges(ctx context.Context, check func(map[string]*api.VirtualMachine) error) error {
	for end := time.Now().Add(5 * time.Second); ; {
		w.mu.Lock()
		changed, now := w.changed, maps.Clone(w.now)
		w.mu.Unlock()
		if err := check(now); err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		select {
		case <-changed:
		case <-time.After(200 * time.Millisecond): // check may depend on more than these objects
		case <-ctx.Done():
		}
	}
}

// NotConvergedError says which state was not reached.
type NotConvergedError struct {
	What  string
	Cause error
}

func (e *NotConvergedError) Error() string { return e.Cause.Error() }

// WaitVM waits until a VirtualMachine passes a check.
func (w *World) WaitVM(ctx context.Context, name string, check func(*api.VirtualMachine) error) error {
	return w.WaitFor(ctx, name, func(all map[string]*api.VirtualMachine) error {
		vm := all[name]
		if vm == nil {
			return errors.New("it does not exist")
		}
		if err := check(vm); err != nil {
			return fmt.Errorf("%w; its status is %s", err, framework.FormatStatus(vm))
		}
		return nil
	})
}

// WaitGone waits until a VirtualMachine of that name does not exist.
func (w *World) WaitGone(ctx context.Context, name string) error {
	began := time.Now()
	err := w.WaitFor(ctx, name+" is gone", func(all map[string]*api.VirtualMachine) error {
		if vm := all[name]; vm != nil {
			return fmt.Errorf("finalizers %v; its status is %s", vm.Finalizers, framework.FormatStatus(vm))
		}
		return nil
	})
	if err == nil {
		w.addDeletion(time.Since(began))
	}
	return err
}

// CreateVM creates a VirtualMachine.
func (w *World) CreateVM(ctx context.Context, vm *api.VirtualMachine) error {
	vm.Namespace = w.Name
	_, err := w.virtualMachines().Create(ctx, vm, metav1.CreateOptions{})
	return err
}

// UpdateVM changes a VirtualMachine as a user does.
func (w *World) UpdateVM(ctx context.Context, name string, change func(*api.VirtualMachine)) error {
	written, err := w.virtualMachines().Change(ctx, name, change)
	if err != nil {
		return err
	}
	return w.waitVersion(ctx, written)
}

// waitVersion waits until the watch has reported a user's write, so that the next check does
// not see an older state.
func (w *World) waitVersion(ctx context.Context, written *api.VirtualMachine) error {
	return w.WaitFor(ctx, written.Name, func(all map[string]*api.VirtualMachine) error {
		vm := all[written.Name]
		return assert.ErrorUnless(vm == nil || vm.UID != written.UID || isSince(vm, written), "the watch is behind")
	})
}

// isSince reports whether vm is the written version or a later one. The generation is not enough,
// because changes of metadata do not increase it.
func isSince(vm, written *api.VirtualMachine) bool {
	seen, err := strconv.ParseUint(vm.ResourceVersion, 10, 64)
	want, wantErr := strconv.ParseUint(written.ResourceVersion, 10, 64)
	return errors.Join(err, wantErr) == nil && seen >= want
}

// DeleteVM requests the deletion of a VirtualMachine.
func (w *World) DeleteVM(ctx context.Context, name string) error {
	return w.virtualMachines().Remove(ctx, name)
}

// NoteCopy records that the test has created a server, which is then not judged.
func (w *World) NoteCopy(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.copies = append(w.copies, id)
}

func (w *World) isCopy(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.copies, id)
}

// NoteRemoval records that the test is about to remove a server.
func (w *World) NoteRemoval(s Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removed[s.ID] = s.Name
}

func (w *World) wasRemoved(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.removed[id]
	return ok
}

// recordRequest records a request of a controller if it changes something.
func (w *World) recordRequest(method, path string) {
	if method == http.MethodGet || strings.Contains(path, "/leases") {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, method+" "+path)
}

// Writes returns the requests so far that changed something, except those for Leases.
func (w *World) Writes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.writes...)
}
