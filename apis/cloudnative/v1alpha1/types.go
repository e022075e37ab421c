// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachine asks for one server and tells how it is. Its name has at most
// 63 characters; no marker can say so, hack/update-codegen.sh does.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=vm;vms,categories=all
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="CPU",type=number,JSONPath=`.status.server.usage.cpu`,description="per cent of one CPU"
// +kubebuilder:printcolumn:name="Memory",type=number,JSONPath=`.status.server.usage.memory`,description="per cent of the VM's memory"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ready",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Driver",type=string,priority=1,JSONPath=`.status.driver`
// +kubebuilder:printcolumn:name="IP",type=string,priority=1,JSONPath=`.status.addresses[0]`
// +kubebuilder:printcolumn:name="ID",type=string,priority=1,JSONPath=`.status.server.id`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.reason`
type VirtualMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the server that is wanted.
	// +required
	Spec VirtualMachineSpec `json:"spec"`
	// status is the server as it was last seen.
	// +default={"observedGeneration": -1}
	// +optional
	Status VirtualMachineStatus `json:"status,omitempty"`
}

// VirtualMachineList is a list of VirtualMachines.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type VirtualMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachine `json:"items"`
}

// Keys of spec.resource.
const (
	ResourceCPU      = corev1.ResourceCPU
	ResourceMemory   = corev1.ResourceMemory
	ResourceRootDisk = corev1.ResourceName("rootDisk")
)

// VirtualMachineSpec is the server that is wanted.
//
// +kubebuilder:validation:XValidation:rule="has(self.driver) == has(oldSelf.driver) && (!has(self.driver) || self.driver == oldSelf.driver)",fieldPath=".driver",message="driver is immutable",messageExpression="'driver is immutable: it was ' + (has(oldSelf.driver) ? oldSelf.driver : 'not set') + ' and is now ' + (has(self.driver) ? self.driver : 'not set') + '; to move the VirtualMachine to another driver, delete it and create it anew'"
type VirtualMachineSpec struct {
	// action is the desired power state: active, stopped or paused.
	// +kubebuilder:default=active
	// +optional
	Action Action `json:"action,omitempty"`

	// resource is the size of the server: cpu and memory are required, rootDisk
	// is optional and may only grow. Fractions are written as 500m or "0.5".
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(key, key in ['cpu', 'memory', 'rootDisk'])",message="allowed are cpu, memory and rootDisk",messageExpression="'unsupported resource ' + self.filter(key, !(key in ['cpu', 'memory', 'rootDisk']))[0] + ': allowed are cpu, memory and rootDisk'"
	// +kubebuilder:validation:XValidation:rule="'cpu' in self",reason=FieldValueRequired,message="cpu is required, for example cpu: 2 or cpu: 500m"
	// +kubebuilder:validation:XValidation:rule="'memory' in self",reason=FieldValueRequired,message="memory is required, for example memory: 4G or memory: 512Mi"
	// +kubebuilder:validation:XValidation:rule="!('cpu' in self) || (isQuantity(string(self['cpu'])) && quantity(string(self['cpu'])).compareTo(quantity('10m')) >= 0 && quantity(string(self['cpu'])).compareTo(quantity('4096')) <= 0)",message="cpu must be a quantity from 10m to 4096, for example 2 or 500m",messageExpression="'cpu is ' + string(self['cpu']) + ': it must be a quantity from 10m to 4096, for example 2 or 500m'"
	// +kubebuilder:validation:XValidation:rule="!('memory' in self) || (isQuantity(string(self['memory'])) && quantity(string(self['memory'])).compareTo(quantity('6Mi')) >= 0 && quantity(string(self['memory'])).compareTo(quantity('64Ti')) <= 0)",message="memory must be a quantity from 6Mi to 64Ti, for example 4G or 512Mi",messageExpression="'memory is ' + string(self['memory']) + ': it must be a quantity from 6Mi to 64Ti, for example 4G or 512Mi'"
	// +kubebuilder:validation:XValidation:rule="!('rootDisk' in self) || (isQuantity(string(self['rootDisk'])) && quantity(string(self['rootDisk'])).compareTo(quantity('1Mi')) >= 0 && quantity(string(self['rootDisk'])).compareTo(quantity('1Pi')) <= 0)",message="rootDisk must be a quantity from 1Mi to 1Pi, for example 40G",messageExpression="'rootDisk is ' + string(self['rootDisk']) + ': it must be a quantity from 1Mi to 1Pi, for example 40G'"
	// +kubebuilder:validation:XValidation:rule="!('rootDisk' in oldSelf) || ('rootDisk' in self && (!isQuantity(string(self['rootDisk'])) || quantity(string(self['rootDisk'])).compareTo(quantity(string(oldSelf['rootDisk']))) >= 0))",message="rootDisk may only grow",messageExpression="'rootDisk may only grow: it was ' + string(oldSelf['rootDisk']) + ' and is now ' + ('rootDisk' in self ? string(self['rootDisk']) : 'not set')"
	// +required
	Resource corev1.ResourceList `json:"resource"`

	// driver runs the server, for example docker, qemu or fake. Empty means the
	// controller's first driver. It cannot be changed later.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	Driver string `json:"driver,omitempty"`

	// image is what the server boots. Empty means the driver's default, if it has one.
	// +optional
	Image *Image `json:"image,omitempty"`

	// volumes are further disks.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Volumes []Volume `json:"volumes,omitempty"`

	// userData is cloud-init user-data.
	// +optional
	UserData *DataSource `json:"userData,omitempty"`

	// networkData is a cloud-init network configuration.
	// +optional
	NetworkData *DataSource `json:"networkData,omitempty"`

	// sshAuthorizedKeys may log in as the image's default user.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=16384
	// +kubebuilder:validation:items:Pattern=`^[^\r\n]+$`
	// +listType=atomic
	// +optional
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`

	// ports are reachable from outside of the server.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(p, !has(p.hostPort) || self.exists_one(q, has(q.hostPort) && q.hostPort == p.hostPort && q.protocol == p.protocol))",message="a hostPort may be used once for each protocol",messageExpression="'hostPort %d is asked for more than once: one may be used once for each protocol'.format([self.filter(p, has(p.hostPort) && !self.exists_one(q, has(q.hostPort) && q.hostPort == p.hostPort && q.protocol == p.protocol))[0].hostPort])"
	// +listType=map
	// +listMapKey=name
	// +optional
	Ports []Port `json:"ports,omitempty"`

	// readinessProbe must answer before the VirtualMachine is Ready.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty"`

	// restartPolicy says what happens when the server stops by itself.
	// +kubebuilder:default=Always
	// +optional
	RestartPolicy RestartPolicy `json:"restartPolicy,omitempty"`

	// restartedAt restarts the server once each time it is changed. A value
	// that is present at creation does not.
	// +optional
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`

	// shutdownGracePeriodSeconds is how long a stop may take before it is
	// forced.
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +optional
	ShutdownGracePeriodSeconds *int64 `json:"shutdownGracePeriodSeconds,omitempty"`

	// deletionPolicy says what happens to the server when the VirtualMachine
	// is deleted: Delete removes it, Retain lets it run on, released.
	// +kubebuilder:default=Delete
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// Action is a desired power state.
// +kubebuilder:validation:Enum=active;stopped;paused
type Action string

// The actions.
const (
	ActionActive  Action = "active"
	ActionStopped Action = "stopped"
	ActionPaused  Action = "paused"
)

// RestartPolicy says what happens when a server stops by itself.
// +kubebuilder:validation:Enum=Always;OnFailure;Never
type RestartPolicy string

// The restart policies.
const (
	RestartAlways    RestartPolicy = "Always"
	RestartOnFailure RestartPolicy = "OnFailure"
	RestartNever     RestartPolicy = "Never"
)

// DeletionPolicy says what happens to the server of a deleted VirtualMachine.
// +kubebuilder:validation:Enum=Delete;Retain
type DeletionPolicy string

// The deletion policies.
const (
	DeletionDelete DeletionPolicy = "Delete"
	DeletionRetain DeletionPolicy = "Retain"
)

// PullPolicy says when an image is fetched.
// +kubebuilder:validation:Enum=IfNotPresent;Always;Never
type PullPolicy string

// The pull policies.
const (
	PullIfNotPresent PullPolicy = "IfNotPresent"
	PullAlways       PullPolicy = "Always"
	PullNever        PullPolicy = "Never"
)

// Image is what a server boots.
//
// +kubebuilder:validation:XValidation:rule="has(self.source) || has(self.kernel)",message="source or kernel is required; leave image out for the driver's default"
type Image struct {
	// source names the image; the driver says which forms it takes, for
	// example an image reference for docker.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Source string `json:"source,omitempty"`
	// checksum is what the image must hash to.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Checksum string `json:"checksum,omitempty"`
	// pullPolicy says when the image is fetched, whatever its tag.
	// +kubebuilder:default=IfNotPresent
	// +optional
	PullPolicy PullPolicy `json:"pullPolicy,omitempty"`
	// kernel boots a kernel directly, without a boot loader.
	// +optional
	Kernel *Kernel `json:"kernel,omitempty"`
}

// Kernel is a kernel to boot directly.
type Kernel struct {
	// source names the kernel.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Source string `json:"source"`
	// initrd names the initial RAM disk.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Initrd string `json:"initrd,omitempty"`
	// cmdline is the kernel's command line.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Cmdline string `json:"cmdline,omitempty"`
}

// Volume is a further disk.
//
// +kubebuilder:validation:XValidation:rule=`(has(self.source) && has(self.source.image) && has(self.source.image.source) ? self.source.image.source : "") == (has(oldSelf.source) && has(oldSelf.source.image) && has(oldSelf.source.image.source) ? oldSelf.source.image.source : "") && (has(self.source) && has(self.source.image) && has(self.source.image.checksum) ? self.source.image.checksum : "") == (has(oldSelf.source) && has(oldSelf.source.image) && has(oldSelf.source.image.checksum) ? oldSelf.source.image.checksum : "")`,fieldPath=".source",message="source and checksum of a volume's image are immutable: the volume is made from it once, so another one needs a volume of another name"
type Volume struct {
	// name of the volume; the guest sees it as the disk's serial number.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// size of the volume; it may only grow.
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Pi')) <= 0",message="size must be a quantity from 1Mi to 1Pi, for example 10G",messageExpression="'size is ' + string(self) + ': it must be a quantity from 1Mi to 1Pi, for example 10G'"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",message="size may only grow",messageExpression="'size may only grow: it was ' + string(oldSelf) + ' and is now ' + string(self)"
	// +required
	Size resource.Quantity `json:"size"`
	// source is what the volume holds at first. Empty means blank. Its image
	// cannot be changed later.
	// +optional
	Source *VolumeSource `json:"source,omitempty"`
	// readOnly refuses writes by the guest.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`
}

// VolumeSource is what a volume holds at first.
//
// +kubebuilder:validation:XValidation:rule="!has(self.image) || (has(self.image.source) && !has(self.image.kernel))",fieldPath=".image",message="source is required and kernel is not allowed: a volume is not booted"
type VolumeSource struct {
	// image is copied into the volume.
	// +optional
	Image *Image `json:"image,omitempty"`
}

// DataSource is text, given in place or kept in a Secret.
//
// +kubebuilder:validation:XValidation:rule="has(self.inline) != has(self.secretKeyRef)",message="exactly one of inline and secretKeyRef is required"
type DataSource struct {
	// inline is the text itself. Everyone who may read the VirtualMachine can
	// read it.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	Inline *string `json:"inline,omitempty"`
	// secretKeyRef names a key of a Secret in the same namespace.
	// +optional
	SecretKeyRef *SecretKeyRef `json:"secretKeyRef,omitempty"`
}

// SecretKeyRef names a key of a Secret in the same namespace.
type SecretKeyRef struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// key in the Secret's data.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +required
	Key string `json:"key"`
}

// Protocol of a port.
// +kubebuilder:validation:Enum=TCP;UDP
type Protocol string

// The protocols.
const (
	ProtocolTCP Protocol = "TCP"
	ProtocolUDP Protocol = "UDP"
)

// Port is reachable from outside of the server.
type Port struct {
	// name of the port.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// protocol is TCP or UDP.
	// +kubebuilder:default=TCP
	// +optional
	Protocol Protocol `json:"protocol,omitempty"`
	// port inside of the server.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`
	// hostPort is the port of the engine's host. Empty lets the engine choose.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	HostPort int32 `json:"hostPort,omitempty"`
	// hostIP is the address of the engine's host that the port is opened on, for
	// example 127.0.0.1. Empty means all of its addresses.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self)",message="hostIP must be an IP address, for example 127.0.0.1 or ::1",messageExpression="'hostIP is ' + self + ': it must be an IP address, for example 127.0.0.1 or ::1'"
	// +optional
	HostIP string `json:"hostIP,omitempty"`
}

// Probe is what must answer before a VirtualMachine is Ready.
type Probe struct {
	// tcpSocket must take a connection.
	// +required
	TCPSocket TCPSocket `json:"tcpSocket"`
	// periodSeconds is the time from one try to the next.
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// timeoutSeconds is how long one try may take.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// TCPSocket is a port inside of the server.
type TCPSocket struct {
	// port inside of the server.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`
}

// Phase sums the status up in one word.
// +kubebuilder:validation:Enum=Creating;Active;Stopped;Paused;Failed;Terminating;Unknown
type Phase string

// The phases. A VirtualMachine that no controller has seen has none.
const (
	PhaseCreating    Phase = "Creating"
	PhaseActive      Phase = "Active"
	PhaseStopped     Phase = "Stopped"
	PhasePaused      Phase = "Paused"
	PhaseFailed      Phase = "Failed"
	PhaseTerminating Phase = "Terminating"
	PhaseUnknown     Phase = "Unknown"
)

// VirtualMachineStatus is the server as it was last seen.
type VirtualMachineStatus struct {
	// observedGeneration is the generation of the spec that this status is
	// about; -1 before any controller has looked.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase sums the status up in one word.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// reason for the phase, one CamelCase word.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says more, for people.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
	// conditions are Ready, Running and Observed, and while they apply
	// RestartRequired, DeletionBlocked and Stalled.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// driver that runs the server.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Driver string `json:"driver,omitempty"`
	// binding is the engine that the server is on. It is written with the first
	// status and never changes.
	// +optional
	Binding *Binding `json:"binding,omitempty"`
	// server is what the driver runs.
	// +optional
	Server *ServerStatus `json:"server,omitempty"`
	// addresses under which the server answers.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// ports of the host that lead to the server, while it runs.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Ports []PortStatus `json:"ports,omitempty"`
	// operation is the step that is under way or failing.
	// +optional
	Operation *Operation `json:"operation,omitempty"`
	// pendingFields are the fields of the spec that take effect at the next
	// restart.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	PendingFields []string `json:"pendingFields,omitempty"`
	// refusedField is the field of the spec that the server cannot have as long
	// as it exists. The rest of the spec is applied.
	// +optional
	RefusedField *RefusedField `json:"refusedField,omitempty"`
	// restartedAt is the last spec.restartedAt that was handled.
	// +optional
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
	// restartCount is how often the server was started again.
	// +kubebuilder:validation:Minimum=0
	// +optional
	RestartCount int64 `json:"restartCount,omitempty"`
	// startTime is when the server's last run began.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// lastUpdateTime is when this status was written.
	// +optional
	LastUpdateTime *metav1.MicroTime `json:"lastUpdateTime,omitempty"`
}

// Binding names the engine that a server is on.
type Binding struct {
	// driver that runs the server.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Driver string `json:"driver"`
	// engineID is the engine's own lasting identity, for example the id that
	// "docker info" prints.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +required
	EngineID string `json:"engineID"`
}

// RefusedField is a field of the spec that a server cannot have.
type RefusedField struct {
	// field of the spec, for example image.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Field string `json:"field"`
	// reason is one CamelCase word.
	// +kubebuilder:validation:MaxLength=256
	// +required
	Reason string `json:"reason"`
	// message says why, and what is possible.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// PortStatus is a port of the host that leads to the server.
type PortStatus struct {
	// name that the spec gives the port; empty if the spec does not have it any
	// more.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Name string `json:"name,omitempty"`
	// protocol is TCP or UDP.
	// +required
	Protocol Protocol `json:"protocol"`
	// port inside of the server.
	// +required
	Port int32 `json:"port"`
	// hostPort is the port of the host: the spec's, or what was chosen where
	// that has none.
	// +required
	HostPort int32 `json:"hostPort"`
	// hostIP is the address of the host that the port is open on; empty means
	// all of its addresses.
	// +kubebuilder:validation:MaxLength=45
	// +optional
	HostIP string `json:"hostIP,omitempty"`
}

// ServerStatus is what a driver runs for a VirtualMachine.
type ServerStatus struct {
	// id is the engine's name for the server.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ID string `json:"id,omitempty"`
	// state is the engine's view of the server.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	State string `json:"state,omitempty"`
	// generation of the spec that the driver was last shown with success.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// stoppedRun is the run of the server that Drover ended because spec.action
	// said so. Such a server is started again whatever its restartPolicy.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	StoppedRun string `json:"stoppedRun,omitempty"`
	// imageID is the digest that the image's name stood for when the server was
	// made from it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ImageID string `json:"imageID,omitempty"`
	// accelerator is what runs the guest's instructions: kvm, or tcg, which
	// emulates. Empty where the driver runs no machines.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Accelerator string `json:"accelerator,omitempty"`
	// usage is what the server uses.
	// +optional
	Usage *Usage `json:"usage,omitempty"`
}

// Usage is what a server uses, rounded to 0.01.
type Usage struct {
	// cpu in per cent of one CPU.
	// +kubebuilder:validation:Minimum=0
	// +required
	CPU float64 `json:"cpu"`
	// memory in per cent of the VM's memory.
	// +kubebuilder:validation:Minimum=0
	// +required
	Memory float64 `json:"memory"`
}

// OperationType is a step that Drover takes for a VirtualMachine.
// +kubebuilder:validation:Enum=Create;Start;Stop;Pause;Resume;Restart;Update;Delete;Release
type OperationType string

// The steps.
const (
	OperationCreate  OperationType = "Create"
	OperationStart   OperationType = "Start"
	OperationStop    OperationType = "Stop"
	OperationPause   OperationType = "Pause"
	OperationResume  OperationType = "Resume"
	OperationRestart OperationType = "Restart"
	OperationUpdate  OperationType = "Update"
	OperationDelete  OperationType = "Delete"
	OperationRelease OperationType = "Release"
)

// OperationFailure is a kind of failure, which decides how long Drover waits
// before the next try: Failed for an error of the engine, Exhausted where it has
// not enough of a resource, Refused where only a new spec can help, Exited for a
// server that was started and ended too soon.
// +kubebuilder:validation:Enum=Failed;Exhausted;Refused;Exited
type OperationFailure string

// The kinds of failure.
const (
	FailureFailed    OperationFailure = "Failed"
	FailureExhausted OperationFailure = "Exhausted"
	FailureRefused   OperationFailure = "Refused"
	FailureExited    OperationFailure = "Exited"
)

// Operation is a step that is under way or failing.
type Operation struct {
	// type of the step.
	// +required
	Type OperationType `json:"type"`
	// generation of the spec that the step is for.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// attempts is how often the step has failed in a row.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// startedAt is when the step was first tried.
	// +required
	StartedAt metav1.MicroTime `json:"startedAt"`
	// nextRetryTime is when it will be tried again.
	// +optional
	NextRetryTime *metav1.MicroTime `json:"nextRetryTime,omitempty"`
	// failure is the kind of the last failure. It is empty before the first.
	// +optional
	Failure OperationFailure `json:"failure,omitempty"`
	// reason for the last failure, one CamelCase word.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// lastError is why the last try failed.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	LastError string `json:"lastError,omitempty"`
	// run is the server's run that a restart ends.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Run string `json:"run,omitempty"`
	// restartedAt is the spec.restartedAt that a restart answers. A later one
	// asks for a further restart.
	// +optional
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
	// epoch of the leader that took the step.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
}
