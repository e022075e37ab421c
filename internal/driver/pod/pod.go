// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pod runs servers as pods of a Kubernetes cluster. A server is the PVC of its root disk, or just
// the pod if it is ephemeral, and at most one pod, whose container runs QEMU through drover-machine.
//
// Start with Ensure in ensure.go. Package objects makes the manifests, and package instance reads the
// objects of a server and says what they prove. record.go has the objects that the status has recorded, writer.go
// changes objects, disks.go has PVCs and their growth, images.go the images of pods and disks, budget.go
// the PodDisruptionBudget, delete.go removes a server, and list.go observes all. channel.go asks running
// machines, by package machines, and package tags asks registries.
//
// These rules keep two machines of one VirtualMachine apart:
//
//   - The pod's name derives from the VirtualMachine, so there is at most one pod.
//   - The pod is created with a scheduling gate. The gate is removed once the PVC has recorded the pod, and
//     the pod has its Secret, so a pod that a deposed leader makes runs nothing. The pod of an ephemeral
//     server that is to run is made without a gate, because no kubelet starts it without its Secret.
//   - The pod has a finalizer, objects.FinalizerStopped, which is removed only once the end of its
//     containers is proven (package instance). Until then the name is taken, whoever deletes the pod.
//   - A pod that is gone although its end was not recorded proves nothing. Nothing is started then until an
//     operator asserts that it has ended.
//   - An object is created only after the VirtualMachine's status has recorded the intent, with a nonce that
//     the object carries (driver.Object). An object of that name without the nonce, or with another UID than
//     the recorded one, is foreign.
//
// Every change of an object names the version that it was decided from and leaves the epoch of the leader on
// the object. A change with a lower epoch is refused.
package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	policyv1client "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/kvm"
	"cloudnative.tw/drover/internal/driver/pod/machines"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/tags"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine/control"
)

// Name is the driver's name in the API.
const Name = "pod"

// Options configure a Driver.
type Options struct {
	// Objects has the settings that the objects of all servers have in common. Objects of another ClusterID
	// are neither listed nor changed.
	Objects objects.Template
	// Client reaches the cluster. Required.
	Client corev1client.CoreV1Interface
	// Policy reaches the PodDisruptionBudgets of that cluster. Required.
	Policy policyv1client.PolicyV1Interface
	// Owner returns the VirtualMachine of a UID if it is known. Objects that claim its UID under another
	// name or in another namespace are not its server. Nil knows none.
	Owner func(types.UID) (driver.Owner, bool)
	// PodAssertedOff returns the pod of a VirtualMachine whose machine an operator has asserted to be
	// off. Nil knows none.
	PodAssertedOff func(types.UID) types.UID
	// Assertions makes Open accept such assertions. Whoever sets it has to restrict who may make them.
	Assertions bool
	// Streams lets people reach guests through Drover: consoles, logs, commands, ports and interfaces.
	Streams bool
	// KVM says which pods request KVM, and KVMResource by which resource.
	KVM, KVMResource string
	// Fetch limits the questions to registries and the size of an image that a machine fetches. With nil
	// no registry is asked, and each node resolves the tags of images.
	Fetch *image.Policy
	// CallTimeout limits a call whose context lacks a deadline.
	CallTimeout time.Duration

	Log   logr.Logger
	Clock clock.WithTicker
}

// Driver runs servers as pods.
type Driver struct {
	Options
	calls    kit.Calls
	watches  kit.Watches
	machines machines.Machines
	kvm      kvm.Chooser
	reader   *instance.Reader
	images   tags.Resolver
	// secrets are the Secrets that this process has made, by the UID of the pod, since their record may
	// fail to be written. The value is nil for a pod that is known to have a Secret of another process.
	secrets driver.SyncMap[types.UID, *corev1.Secret]
}

var (
	_ driver.Driver        = (*Driver)(nil)
	_ driver.Identifier    = (*Driver)(nil)
	_ driver.FieldDeclarer = (*Driver)(nil)
	_ driver.Prober        = (*Driver)(nil)
	_ driver.EndedReleaser = (*Driver)(nil)
)

// DefaultOptions returns the options that flags can change.
func DefaultOptions() *Options {
	return &Options{
		CallTimeout: kit.DefaultCallTimeout, KVM: string(kvm.Auto), KVMResource: kvm.DefaultResource, Fetch: &image.Policy{},
		Objects: objects.Template{MachineImage: "drover-machine", AccessMode: string(corev1.ReadWriteOncePod), MemoryOverheadBytes: 192<<20 + control.EdgeMemoryBytes},
	}
}

// AddFlags adds the flags of the driver.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Objects.MachineImage, "pod-machine-image", o.Objects.MachineImage, "pod: image of drover-machine")
	fs.StringVar(&o.Objects.Image, "pod-image", o.Objects.Image, "pod: container disk, as oci://REFERENCE, of a VirtualMachine that names none; empty for none")
	fs.StringVar(&o.Objects.AccessMode, "pod-access-mode", o.Objects.AccessMode, "pod: access mode of PersistentVolumeClaims: ReadWriteOncePod, ReadWriteOnce or ReadWriteMany")
	fs.StringVar(&o.KVM, "pod-kvm", o.KVM, "pod: whether pods request KVM: auto if a node offers it that the pod may run on, require or never")
	fs.StringVar(&o.KVMResource, "pod-kvm-resource", o.KVMResource, "pod: extended resource by which nodes offer KVM")
	fs.BoolVar(&o.Streams, "pod-streams", o.Streams, "pod: serve consoles, logs, commands, interfaces and ports of pods that are made from then on, to users with the right to these streams; needs --streams-address. Without it kubectl vm asks the API server, with the user's rights on pods")
	fs.BoolVar(&o.Assertions, "pod-assertions", o.Assertions, "pod: take the annotation cloudnative.tw/machine-is-off of a VirtualMachine as proof that its machine is off; only where the policy of config/pod restricts who may set it")
}

// CheckWithoutStreams refuses an option that has no effect where no streams are served: it would only let
// an attacker reach more in machines.
func (o *Options) CheckWithoutStreams() error {
	if o.Streams {
		return errors.New("--pod-streams is given without --streams-address, where streams would be served")
	}
	return nil
}

// DataDir returns nil: the cluster keeps the objects.
func (o *Options) DataDir() *string { return nil }

// Open opens the driver in env.
func (o *Options) Open(env driver.Environment) (driver.Driver, error) {
	if env.Cluster == nil {
		return nil, fmt.Errorf("no cluster is known that runs pods")
	}
	cluster := rest.CopyConfig(env.Cluster)
	// The API server has pods ready in this form for the watches of others.
	cluster.ContentType, cluster.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := corev1client.NewForConfig(cluster)
	policy, failed := policyv1client.NewForConfig(cluster)
	if err := errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	opened := *o
	opened.Policy = policy
	opened.Objects.ClusterID, opened.Log, opened.Clock, opened.Client, opened.Owner = env.ClusterID, env.Log, env.Clock, client, env.Owner
	if o.Assertions {
		opened.PodAssertedOff = env.PodAssertedOff
	}
	d, err := New(opened)
	if err == nil && o.Streams {
		return newStreaming(d), nil
	}
	return d, err
}

// New returns a driver. It does not connect to the cluster.
func New(o Options) (*Driver, error) {
	switch {
	case o.Objects.ClusterID == "":
		return nil, fmt.Errorf("pod: a cluster id is needed")
	case o.Client == nil, o.Policy == nil:
		return nil, fmt.Errorf("pod: a client of the cluster is needed")
	}
	if err := o.Objects.Check(); err != nil {
		return nil, err
	}
	if err := kvm.CheckFlags(kvm.Mode(o.KVM), o.KVMResource); err != nil {
		return nil, err
	}
	o.CallTimeout = cmp.Or(o.CallTimeout, kit.DefaultCallTimeout)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	d := &Driver{Options: o, calls: kit.Calls{Timeout: o.CallTimeout}, machines: machines.Machines{Secrets: o.Client.Secrets(machines.SeedNamespace), Clock: o.Clock, Guests: o.Streams}}
	d.kvm.Mode, d.kvm.Resource, d.kvm.Nodes, d.kvm.Clock, d.kvm.Log = kvm.Mode(o.KVM), corev1.ResourceName(o.KVMResource), o.Client.Nodes(), o.Clock, o.Log
	d.images.Clock = o.Clock
	if o.Fetch != nil {
		sources, err := image.NewSources(*o.Fetch)
		if err != nil {
			return nil, err
		}
		d.images.Resolve, d.Objects.ImageMaxBytes = sources.Resolve, o.Fetch.MaxSize
	}
	d.reader = &instance.Reader{
		ClusterID: o.Objects.ClusterID, Client: o.Client, Policy: o.Policy, Log: o.Log, Owner: o.Owner, PodAssertedOff: o.PodAssertedOff, LastStatus: d.machines.Last, Clock: o.Clock,
		HasSecret: func(pod types.UID) bool { _, ok := d.secrets.Load(pod); return ok },
	}
	return d, nil
}

// EngineID implements driver.Identifier: the UID of namespace kube-system, which stands for the
// cluster.
func (d *Driver) EngineID(ctx context.Context) (string, error) {
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	system, err := d.Client.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", driver.Errorf(driver.ErrUnavailable, "read namespace %s for the cluster's id: %w", metav1.NamespaceSystem, err)
	}
	return string(system.UID), nil
}

// SupportedFields implements driver.FieldDeclarer.
func (d *Driver) SupportedFields() map[string]driver.Support { return objects.SupportedFields() }
