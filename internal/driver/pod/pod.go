// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pod runs servers as pods of a Kubernetes cluster. A server is the PVC of its root
// disk, or just the pod if it is ephemeral, and at most one pod, whose container runs QEMU
// through drover-machine.
//
// Start with Ensure in ensure.go. An instance (instance.go) is the objects of one server as
// they were just read. The other files have one concern each: proof.go tells when a pod has
// ended for sure, manifest.go makes the pod, disks.go the PVCs, spec.go checks and translates
// a spec, state.go describes a server, delete.go removes it, list.go and watch.go observe all.
// channel.go asks running machines, by package machines.
//
// What keeps two machines of one VirtualMachine apart:
//
//   - The pod's name derives from the VirtualMachine, so there is at most one pod.
//   - The pod is created with a scheduling gate, which is removed once the PVC has recorded the
//     pod, and the pod has its Secret. So a pod that a deposed leader makes runs nothing.
//   - The pod has a finalizer, FinalizerStopped, which is removed only once the end of its
//     containers is proven (proof.go). Until then the name is taken, whoever deletes the pod.
//   - A pod that is gone although its end was not recorded proves nothing. Nothing is started
//     then until a person says that it has ended.
//   - An object is created only after the VirtualMachine's status has recorded the intent, with
//     a nonce that the object carries (driver.Object). An object of that name without the
//     nonce, or with another UID than the recorded one, is foreign.
//
// Every change of an object names the version that it was decided from, and leaves the epoch of
// the leader on it, below which none is accepted.
package pod

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	policyv1client "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/machines"
)

// Name is the driver's name in the API.
const Name = "pod"

// DefaultCallTimeout limits a call whose context has no deadline.
const DefaultCallTimeout = 30 * time.Second

// Options configure a Driver.
type Options struct {
	// ClusterID is a label of every object; those of other clusters are neither listed nor
	// changed.
	ClusterID string
	// Client reaches the cluster. Required.
	Client corev1client.CoreV1Interface
	// Policy reaches the PodDisruptionBudgets of that cluster. Required.
	Policy policyv1client.PolicyV1Interface
	// Owner returns the VirtualMachine of a UID as far as one is known. Objects that claim its
	// UID under another name or in another namespace are not its server. Nil knows none.
	Owner func(types.UID) (types.NamespacedName, bool)
	// AssertedOff returns the pod of a VirtualMachine that is off by the word of an operator. Nil
	// knows none.
	AssertedOff func(types.UID) types.UID
	// Assertions has Open take that word. Something else has to keep it from being written by
	// everyone.
	Assertions bool
	// MachineImage is the image of drover-machine.
	MachineImage string
	// Image is the container disk of a server without image.source; empty for none.
	Image string
	// AccessMode is that of all PVCs.
	AccessMode string
	// MemoryOverheadBytes is what a pod may use in addition to its guest's memory.
	MemoryOverheadBytes int64
	// CallTimeout limits a call whose context has no deadline.
	CallTimeout time.Duration

	Log   logr.Logger
	Clock clock.WithTicker
}

// Driver runs servers as pods.
type Driver struct {
	Options
	// locks has, by UID, a channel that is closed when the call which changes that server ends.
	locks    driver.SyncMap[types.UID, chan struct{}]
	machines machines.Machines
	// pods are those of the watch that was opened last, nil if none is open.
	pods atomic.Pointer[cache.Indexer]
	// watches are the queues of open watches.
	watches driver.SyncMap[workqueue.TypedInterface[types.UID], bool]
}

var (
	_ driver.Driver           = (*Driver)(nil)
	_ driver.Identifier       = (*Driver)(nil)
	_ driver.FieldDeclarer    = (*Driver)(nil)
	_ driver.Prober           = (*Driver)(nil)
	_ driver.RetainedReleaser = (*Driver)(nil)
)

// DefaultOptions returns the options that flags can change.
func DefaultOptions() *Options {
	return &Options{
		MachineImage: "drover-machine", AccessMode: string(corev1.ReadWriteOncePod),
		MemoryOverheadBytes: 192 << 20, CallTimeout: DefaultCallTimeout,
	}
}

// AddFlags adds the flags of the driver.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.MachineImage, "pod-machine-image", o.MachineImage, "pod: image of drover-machine")
	fs.StringVar(&o.Image, "pod-image", o.Image, "pod: container disk, as oci://REFERENCE, of a VirtualMachine that names none; empty for none")
	fs.StringVar(&o.AccessMode, "pod-access-mode", o.AccessMode, "pod: access mode of PersistentVolumeClaims: ReadWriteOncePod, ReadWriteOnce or ReadWriteMany")
	fs.BoolVar(&o.Assertions, "pod-assertions", o.Assertions, "pod: take the annotation cloudnative.tw/machine-is-off of a VirtualMachine for an operator's word; only where the policy of config/pod protects it")
}

// DataDir returns nil: the cluster keeps the objects.
func (o *Options) DataDir() *string { return nil }

// Open opens the driver in env.
func (o *Options) Open(env driver.Environment) (driver.Driver, error) {
	if env.Cluster == nil {
		return nil, fmt.Errorf("no cluster is known that runs pods")
	}
	client, err := corev1client.NewForConfig(env.Cluster)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	policy, err := policyv1client.NewForConfig(env.Cluster)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	opened := *o
	opened.Policy = policy
	opened.ClusterID, opened.Log, opened.Clock, opened.Client, opened.Owner = env.ClusterID, env.Log, env.Clock, client, env.Owner
	if o.Assertions {
		opened.AssertedOff = env.AssertedOff
	}
	return New(opened)
}

// New returns a driver. It does not connect to the cluster.
func New(o Options) (*Driver, error) {
	switch {
	case o.ClusterID == "":
		return nil, fmt.Errorf("pod: a cluster id is needed")
	case o.Client == nil, o.Policy == nil:
		return nil, fmt.Errorf("pod: a client of the cluster is needed")
	case !isAccessMode(o.AccessMode):
		return nil, fmt.Errorf("--pod-access-mode is %q: it must be one of %v", o.AccessMode, accessModes)
	case o.MachineImage == "":
		return nil, fmt.Errorf("--pod-machine-image is empty: it must be the image of drover-machine")
	}
	o.CallTimeout = cmp.Or(o.CallTimeout, DefaultCallTimeout)
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Driver{Options: o, machines: machines.Machines{Secrets: o.Client.Secrets(machines.SeedNamespace), Clock: o.Clock}}, nil
}

// EngineID implements driver.Identifier: the UID of namespace kube-system, which stands for the
// cluster.
func (d *Driver) EngineID(ctx context.Context) (string, error) {
	ctx, cancel := d.withCallTimeout(ctx)
	defer cancel()
	system, err := d.Client.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", driver.Errorf(driver.ErrUnavailable, "read namespace %s for the cluster's id: %w", metav1.NamespaceSystem, err)
	}
	return string(system.UID), nil
}

// withCallTimeout gives ctx a deadline if it has none.
func (d *Driver) withCallTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d.CallTimeout)
}

// lockServer serialises the calls that change one server within this process.
func (d *Driver) lockServer(ctx context.Context, uid types.UID) (unlock func(), err error) {
	own := make(chan struct{})
	for {
		held, locked := d.locks.LoadOrStore(uid, own)
		if !locked {
			return func() { d.locks.Delete(uid); close(own) }, nil
		}
		select {
		case <-held:
		case <-ctx.Done():
			return nil, driver.Errorf(driver.ErrRetry, "another call for this server has not ended: %w", ctx.Err())
		}
	}
}
