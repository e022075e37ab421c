// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// hack/update-codegen.sh writes the bound of the name, which no marker can state.

// VirtualMachine runs one server, for example a container or a QEMU machine,
// as its spec describes it. Its name has at most 63 characters.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=vm;vms,categories=all
// +kubebuilder:selectablefield:JSONPath=`.status.phase`
// +kubebuilder:selectablefield:JSONPath=`.status.driver`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="CPU",type=number,JSONPath=`.status.server.usage.cpu`,description="per cent of one CPU"
// +kubebuilder:printcolumn:name="Memory",type=number,JSONPath=`.status.server.usage.memory`,description="per cent of the VM's memory"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ready",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Driver",type=string,priority=1,JSONPath=`.status.driver`
// +kubebuilder:printcolumn:name="Address",type=string,priority=1,JSONPath=`.status.addresses[0]`
// +kubebuilder:printcolumn:name="ID",type=string,priority=1,JSONPath=`.status.server.id`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.reason`
type VirtualMachine struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the object's metadata, as every Kubernetes object has it.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the server.
	// +required
	Spec VirtualMachineSpec `json:"spec"`
	// status is the observed state of the server. The controller writes it.
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

// VirtualMachineSpec is the desired state of a server.
//
// +kubebuilder:validation:XValidation:rule="has(self.driver) == has(oldSelf.driver) && (!has(self.driver) || self.driver == oldSelf.driver)",fieldPath=".driver",message="driver is immutable",messageExpression="'driver is immutable: it was ' + (has(oldSelf.driver) ? oldSelf.driver : 'not set') + ' and is now ' + (has(self.driver) ? self.driver : 'not set') + '; to move the VirtualMachine to another driver, delete it and create it again'"
// +kubebuilder:validation:XValidation:rule="(has(self.ephemeral) && self.ephemeral) == (has(oldSelf.ephemeral) && oldSelf.ephemeral)",fieldPath=".ephemeral",message="ephemeral is immutable",messageExpression="'ephemeral is immutable: it was ' + (has(oldSelf.ephemeral) && oldSelf.ephemeral ? 'true' : 'false') + ' and is now ' + (has(self.ephemeral) && self.ephemeral ? 'true' : 'false') + '; to change it, delete the VirtualMachine and create it again'"
// +kubebuilder:validation:XValidation:rule="has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",fieldPath=".storageClassName",message="storageClassName is immutable",messageExpression="'storageClassName is immutable: it was ' + (has(oldSelf.storageClassName) ? '\"' + oldSelf.storageClassName + '\"' : 'not set') + ' and is now ' + (has(self.storageClassName) ? '\"' + self.storageClassName + '\"' : 'not set') + '; to change it, delete the VirtualMachine and create it again'"
// +kubebuilder:validation:XValidation:rule="!has(self.files) || !has(self.volumes) || self.files.all(f, self.volumes.all(v, !has(v.mountPath) || v.mountPath != f.mountPath && !v.mountPath.startsWith(f.mountPath + '/')))",fieldPath=".files",message="the mountPath of a volume must not be one of files, and not be inside it: the files would hide the volume"
type VirtualMachineSpec struct {
	// action is the desired power state:
	// - active: the server runs.
	// - stopped: the server is shut down and stays off. Its data is kept.
	// - paused: the server is frozen. It keeps its memory and uses no CPU.
	// +default="active"
	// +optional
	Action Action `json:"action,omitempty"`

	// resource is the size of the server, by these keys:
	// - cpu: the number of CPUs, 10m to 4096. 500m, or "0.5", is half a CPU.
	//   Required.
	// - memory: the memory in bytes, 6Mi to 64Ti. 4G is 4000000000 bytes, 4Gi is
	//   4294967296. Required.
	// - rootDisk: the size of the root disk in bytes, 1Mi to 1Pi. It may only
	//   grow. Without it, the driver chooses the size.
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

	// driver is the name of the driver that runs the server: docker, qemu, pod or
	// fake. Empty means the first driver of the controller. It is immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	Driver string `json:"driver,omitempty"`

	// image is the image that the server boots. Without it, the driver's default is
	// used, if the driver has one. The image of a machine (qemu) that keeps its root disk
	// cannot be changed, since the disk holds data.
	// +optional
	Image *Image `json:"image,omitempty"`

	// command is the program that the server runs, and its first arguments, in
	// place of the entrypoint of a container image; args follow it. No shell
	// interprets it, and no $(NAME) in it is replaced. It has at most 256
	// elements and 128 KiB, with one byte more for each element.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=32767
	// +kubebuilder:validation:items:XValidation:rule=`!self.contains("\x00")`,message="NUL characters are not allowed"
	// +kubebuilder:validation:XValidation:rule="self.size() == 0 || self[0] != ''",message="the first element is the program, and must not be empty; leave command out for that of the image"
	// +kubebuilder:validation:XValidation:rule="self.map(text, bytes(text).size() + 1).sum() <= 131072",message="at most 131072 bytes are allowed in all, with one more for each element"
	// +listType=atomic
	// +optional
	Command []string `json:"command,omitempty"`

	// args are the arguments of the command, or of the entrypoint of the image if
	// there is no command. They replace those of the image. No $(NAME) in them is
	// replaced. They have at most 256 elements and 128 KiB, with one byte more for
	// each element.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=32767
	// +kubebuilder:validation:items:XValidation:rule=`!self.contains("\x00")`,message="NUL characters are not allowed"
	// +kubebuilder:validation:XValidation:rule="self.map(text, bytes(text).size() + 1).sum() <= 131072",message="at most 131072 bytes are allowed in all, with one more for each element"
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`

	// env are environment variables of the command. They are added to those of the
	// image and replace variables of the same name. They have at most 256 elements and 128
	// KiB, with two bytes more for each.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self.map(v, v.name.size() + (has(v.value) ? bytes(v.value).size() : 0) + 2).sum() <= 131072",message="at most 131072 bytes are allowed in all, names and values, with two more for each variable"
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []EnvVar `json:"env,omitempty"`

	// workingDir is the folder in which the command begins, an absolute path. It
	// replaces that of the image.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches('[^/]{256}')",message="each name in the path may have at most 255 characters"
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="workingDir must be an absolute path, for example /srv"
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]')`,message="control characters, and those that no one sees or that change the direction of writing, are not allowed"
	// +optional
	WorkingDir string `json:"workingDir,omitempty"`

	// user is who runs the command: a name or an ID of the image, and perhaps a
	// colon and a group. It replaces that of the image.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^:]+(:[^:]+)?$')",message="user must be USER or USER:GROUP, each a name or an ID, for example 1000 or app:staff"
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\s\p{Cc}\p{Cf}\p{Zl}\p{Zp}]')`,message="spaces, control characters, and those that no one sees or that change the direction of writing, are not allowed"
	// +optional
	User string `json:"user,omitempty"`

	// init is which program is process 1 of a container image. The default is
	// Image under driver docker. Under driver qemu it is Image for a command that
	// is an init by its name, such as systemd, and Drover for others.
	// +optional
	Init Init `json:"init,omitempty"`

	// stdin gives the command of a container image a standard input, which the
	// console writes to. Without it the input is empty.
	// +optional
	Stdin bool `json:"stdin,omitempty"`

	// tty gives the command of a container image a terminal as standard input,
	// output and error.
	// +optional
	TTY bool `json:"tty,omitempty"`

	// sysctls are parameters of the kernel that are set before the command of a
	// container image starts. Under docker those that containers share are
	// refused. A machine has its kernel for itself.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Sysctls []Sysctl `json:"sysctls,omitempty"`

	// volumes are disks in addition to the root disk. A volume that is removed
	// from this list keeps its data until the VirtualMachine is deleted.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(v, !has(v.mountPath) || self.exists_one(w, has(w.mountPath) && w.mountPath == v.mountPath))",message="a mountPath may be used once"
	// +listType=map
	// +listMapKey=name
	// +optional
	Volumes []Volume `json:"volumes,omitempty"`

	// files are folders of a container image's machine (qemu) with the keys of
	// Secrets and ConfigMaps as files, as the volumes of a pod have them. They are
	// in memory, and never on a disk. While the machine runs, Drover looks for
	// changes every 20 seconds, finds one within 30, and replaces the files of a
	// folder at once.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(f, self.all(g, !f.mountPath.startsWith(g.mountPath + '/')))",message="a mountPath must not be inside another one"
	// +listType=map
	// +listMapKey=mountPath
	// +optional
	Files []FileMount `json:"files,omitempty"`

	// userData is the user-data that cloud-init reads in the guest, for example a
	// document that begins with #cloud-config.
	// +optional
	UserData *DataSource `json:"userData,omitempty"`

	// networkData is the network configuration that cloud-init reads in the guest.
	// +optional
	NetworkData *DataSource `json:"networkData,omitempty"`

	// sshAuthorizedKeys are public keys, such as "ssh-ed25519 AAAA...", that may
	// log in as the default user of the image. cloud-init installs them at the
	// first boot.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=16384
	// +kubebuilder:validation:items:Pattern=`^[^\r\n]+$`
	// +listType=atomic
	// +optional
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`

	// ports are the ports of the server that can be reached through the engine's
	// host. A number can be used once for each protocol, and a hostPort once for
	// each protocol and hostIP.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(p, self.exists_one(q, q.port == p.port && q.protocol == p.protocol))",message="a port may be used once for each protocol",messageExpression="'port %d is asked for more than once: one may be used once for each protocol'.format([self.filter(p, !self.exists_one(q, q.port == p.port && q.protocol == p.protocol))[0].port])"
	// +kubebuilder:validation:XValidation:rule="self.all(p, !has(p.hostPort) || self.exists_one(q, has(q.hostPort) && q.hostPort == p.hostPort && q.protocol == p.protocol && (!has(p.hostIP) || !has(q.hostIP) || p.hostIP in ['', q.hostIP, q.hostIP.contains(':') ? '::' : '0.0.0.0'] || q.hostIP in ['', p.hostIP.contains(':') ? '::' : '0.0.0.0'])))",message="a hostPort may be used once for each protocol and hostIP, and an empty hostIP is every address",messageExpression="'hostPort %d is asked for more than once: it may be used once for each protocol and hostIP, and an empty hostIP is every address'.format([self.filter(p, has(p.hostPort) && !self.exists_one(q, has(q.hostPort) && q.hostPort == p.hostPort && q.protocol == p.protocol && (!has(p.hostIP) || !has(q.hostIP) || p.hostIP in ['', q.hostIP, q.hostIP.contains(':') ? '::' : '0.0.0.0'] || q.hostIP in ['', p.hostIP.contains(':') ? '::' : '0.0.0.0'])))[0].hostPort])"
	// +listType=map
	// +listMapKey=name
	// +optional
	Ports []Port `json:"ports,omitempty"`

	// readinessProbe is a check that must succeed before condition Ready is true.
	// Without it, a server that runs is ready; that of a container image with a
	// HEALTHCHECK only while that succeeds.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty"`

	// restartPolicy is what happens when the server stops by itself:
	// - Always: it is started again.
	// - OnFailure: it is started again unless it ended successfully (exit code 0,
	//   or a guest that shut down).
	// - Never: it stays off.
	// A server that its host has ended, such as by a drain, or that never ran, is
	// started again in any case.
	// +default="Always"
	// +optional
	RestartPolicy RestartPolicy `json:"restartPolicy,omitempty"`

	// restartedAt restarts the server once each time its value changes. Use the
	// current time, for example 2026-01-31T12:00:00Z. A value that is set at
	// creation, or while action is not active, restarts nothing.
	// +optional
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`

	// shutdownGracePeriodSeconds is the time in seconds that the guest has to shut
	// down. After it the server is stopped by force.
	// +default=30
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +optional
	ShutdownGracePeriodSeconds *int64 `json:"shutdownGracePeriodSeconds,omitempty"`

	// deletionPolicy is what happens to the server when the VirtualMachine is
	// deleted:
	// - Delete: it is stopped and removed with its data.
	// - Retain: it continues to run and is no longer managed.
	// +default="Delete"
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// ephemeral discards the root disk when a run ends: no volume is kept for it,
	// and each run begins with the image. It is immutable.
	// +optional
	Ephemeral bool `json:"ephemeral,omitempty"`

	// storageClassName is the StorageClass of the PersistentVolumeClaims of the
	// disks. Without it, the cluster's default is used; "" means none, so that
	// only volumes without a class match. It is immutable.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`

	// evictionPolicy is what happens when the server is to be evicted from its
	// node, as kubectl drain does:
	// - Allow: the guest is shut down and comes up on another node, if its disks can follow.
	// - Block: the eviction is refused, by a PodDisruptionBudget.
	//
	// Without it, evictions are allowed.
	// +optional
	EvictionPolicy EvictionPolicy `json:"evictionPolicy,omitempty"`

	// nodeSelector are labels that the node of the server must have, as in a pod.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// affinity is which nodes the server prefers or requires, and which pods it
	// wants near or far, as in a pod.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// tolerations are the taints of nodes that the server tolerates, as in a pod.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// topologySpreadConstraints are how servers spread over zones, nodes and other
	// domains, as in a pod.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	// +optional
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// priorityClassName is the name of the PriorityClass of the server's pod.
	// Without it, the cluster's default is used.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// runtimeClassName is the name of the RuntimeClass of the server's pod.
	// Without it, the node's default runtime is used.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	RuntimeClassName string `json:"runtimeClassName,omitempty"`
}

// Init is which program is process 1 of a container image.
// +kubebuilder:validation:Enum=Image;Drover
type Init string

// Values of Init.
const (
	// InitImage means the command. It has to reap orphans, and a signal that it
	// does not handle has no effect.
	InitImage Init = "Image"
	// InitDrover means a program that only reaps orphans. The command is its child.
	InitDrover Init = "Drover"
)

// Sysctl is a parameter of the kernel, as in a pod.
type Sysctl struct {
	// name is the name of the parameter, for example net.core.somaxconn. Segments
	// are separated by . or by /, as for sysctl(8).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$')",message="name must consist of segments of lower-case letters, digits, - and _, separated by . or /, for example net.core.somaxconn"
	// +required
	Name string `json:"name"`
	// value is the value of the parameter.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]')`,message="control characters, and those that no one sees or that change the direction of writing, are not allowed"
	// +required
	Value string `json:"value"`
}

// Action is a desired power state.
//
// +kubebuilder:validation:Enum=active;stopped;paused
type Action string

// Values of Action.
const (
	// ActionActive means that the server runs.
	ActionActive Action = "active"
	// ActionStopped means that the server is shut down and stays off. Its data is
	// kept.
	ActionStopped Action = "stopped"
	// ActionPaused means that the server is frozen: it keeps its memory and uses
	// no CPU.
	ActionPaused Action = "paused"
)

// RestartPolicy is what happens when a server stops by itself.
//
// +kubebuilder:validation:Enum=Always;OnFailure;Never
type RestartPolicy string

// Values of RestartPolicy.
const (
	// RestartAlways starts the server again.
	RestartAlways RestartPolicy = "Always"
	// RestartOnFailure starts the server again unless it ended successfully.
	RestartOnFailure RestartPolicy = "OnFailure"
	// RestartNever leaves the server off.
	RestartNever RestartPolicy = "Never"
)

// DeletionPolicy is what happens to the server of a deleted VirtualMachine.
//
// +kubebuilder:validation:Enum=Delete;Retain
type DeletionPolicy string

// Values of DeletionPolicy.
const (
	// DeletionDelete stops the server and removes it with its data.
	DeletionDelete DeletionPolicy = "Delete"
	// DeletionRetain lets the server run, no longer managed.
	DeletionRetain DeletionPolicy = "Retain"
)

// EvictionPolicy is what happens when a server is to be evicted from its node.
//
// +kubebuilder:validation:Enum=Allow;Block
type EvictionPolicy string

// Values of EvictionPolicy.
const (
	// EvictionAllow shuts the guest down, and it comes up on another node, if its disks can follow.
	EvictionAllow EvictionPolicy = "Allow"
	// EvictionBlock refuses the eviction.
	EvictionBlock EvictionPolicy = "Block"
)

// PullPolicy is when an image is fetched.
//
// +kubebuilder:validation:Enum=IfNotPresent;Always;Never
type PullPolicy string

// Values of PullPolicy.
const (
	// PullIfNotPresent fetches the image if it is not present yet.
	PullIfNotPresent PullPolicy = "IfNotPresent"
	// PullAlways fetches the image each time a server or a disk is created from
	// it.
	PullAlways PullPolicy = "Always"
	// PullNever fetches nothing: the image must be present.
	PullNever PullPolicy = "Never"
)

// Image is an image that a server boots, or from which a volume is created.
//
// +kubebuilder:validation:XValidation:rule="has(self.source) || has(self.kernel)",message="source or kernel is required; leave image out for the driver's default"
type Image struct {
	// source is the name of the image. The driver determines its form:
	// - docker: an image reference, for example nginx:1.29.
	// - qemu: an image reference, which boots as a machine, or a disk: cloud://
	//   and a name of a cloud image, for example cloud://debian/13, https://...,
	//   oci://registry/name:tag, or the absolute path of a file.
	// - pod: https://..., or oci://registry/name:tag or
	//   oci://registry/name@sha256:....
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]')`,message="control characters, and those that no one sees or that change the direction of writing, are not allowed"
	// +optional
	Source string `json:"source,omitempty"`
	// checksum is the digest that the image must have: sha256: and 64 hexadecimal
	// digits. qemu and pod require it for an image from a web server, but not
	// for cloud://. For a compressed image it is the digest of the compressed file.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Checksum string `json:"checksum,omitempty"`
	// pullPolicy is when the image is fetched:
	// - IfNotPresent: if it is not present yet, whatever its tag.
	// - Always: each time a server or a disk is created from it.
	// - Never: not at all. The image must be present.
	// +default="IfNotPresent"
	// +optional
	PullPolicy PullPolicy `json:"pullPolicy,omitempty"`
	// kernel boots a kernel directly, without a boot loader.
	// +optional
	Kernel *Kernel `json:"kernel,omitempty"`
}

// Kernel is a kernel that is booted directly, without a boot loader.
type Kernel struct {
	// source is the kernel, as the absolute path of a file.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]')`,message="control characters, and those that no one sees or that change the direction of writing, are not allowed"
	// +required
	Source string `json:"source"`
	// initrd is the initial RAM disk, as the absolute path of a file.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]')`,message="control characters, and those that no one sees or that change the direction of writing, are not allowed"
	// +optional
	Initrd string `json:"initrd,omitempty"`
	// cmdline is the command line of the kernel, for example console=ttyS0.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Cmdline string `json:"cmdline,omitempty"`
}

// EnvVar is an environment variable, as in a pod.
//
// +kubebuilder:validation:XValidation:rule="!has(self.valueFrom) || !has(self.value) || self.value.size() == 0",message="only one of value and valueFrom is allowed"
type EnvVar struct {
	// name is the name of the variable: printable ASCII characters without =.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[ -<>-~]*$')",message="name must consist of printable ASCII characters without ="
	// +required
	Name string `json:"name"`
	// value is the value of the variable, empty without one. Everyone who may read
	// the VirtualMachine can read it. No $(NAME) in it is replaced.
	// +kubebuilder:validation:MaxLength=32767
	// +kubebuilder:validation:XValidation:rule=`!self.contains("\x00")`,message="NUL characters are not allowed"
	// +optional
	Value string `json:"value,omitempty"`
	// valueFrom is where the value comes from, if there is no value.
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty"`
}

// EnvVarSource is where the value of an environment variable comes from.
type EnvVarSource struct {
	// secretKeyRef selects a key of a Secret in the namespace of the
	// VirtualMachine. Its value must be UTF-8 text without NUL characters.
	// - The Secret is read at each start and change by Drover, and not at a restart
	//   by the engine itself, as of a container that has ended.
	// - Under docker, everyone who may use the engine can read the value, as by
	//   docker inspect.
	// +required
	SecretKeyRef *SecretKeySelector `json:"secretKeyRef"`
}

// SecretKeySelector selects a key of a Secret in the namespace of the
// VirtualMachine, as in a pod.
type SecretKeySelector struct {
	SecretKeyRef `json:",inline"`
	// optional leaves the variable out if the Secret or its key does not exist.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// FileMount is a folder with files of a Secret or ConfigMap.
//
// +kubebuilder:validation:XValidation:rule="has(self.secret) != has(self.configMap)",message="exactly one of secret and configMap is required"
type FileMount struct {
	// mountPath is the folder, an absolute path. What the image has there is hidden.
	// Another path needs a restart.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches('[^/]{256}')",message="each name in the path may have at most 255 characters"
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[^/]+)+$') && !self.matches('/[.][.]?(/|$)')",message="mountPath must be an absolute path other than /, without .. or . in it and without a slash at its end, for example /etc/tls"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^/(etc$|(proc|sys|dev)(/|$))')",message="mountPath must not be /etc, and not be /proc, /sys or /dev or be inside one of them"
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]')`,message="control characters, and those that no one sees or that change the direction of writing, are not allowed"
	// +required
	MountPath string `json:"mountPath"`
	// secret is the Secret in the namespace of the VirtualMachine.
	// +optional
	Secret *SecretFiles `json:"secret,omitempty"`
	// configMap is the ConfigMap in the namespace of the VirtualMachine.
	// +optional
	ConfigMap *ConfigMapFiles `json:"configMap,omitempty"`
}

// SecretFiles are the keys of a Secret as files, as in a volume of a pod.
type SecretFiles struct {
	// secretName is the name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	SecretName    string `json:"secretName"`
	FileSelection `json:",inline"`
}

// ConfigMapFiles are the keys of a ConfigMap as files, as in a volume of a pod.
type ConfigMapFiles struct {
	// name is the name of the ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name          string `json:"name"`
	FileSelection `json:",inline"`
}

// FileSelection says which keys become files, and how.
type FileSelection struct {
	// items are the keys that become files. Without items each key becomes a file
	// of its name.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=path
	// +optional
	Items []KeyToPath `json:"items,omitempty"`
	// defaultMode is the permissions of the files: 0 to 0777, 0644 by default. JSON
	// has it in decimal: 420 is 0644. The files belong to the user of the command.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=511
	// +optional
	DefaultMode *int32 `json:"defaultMode,omitempty"`
	// optional lets the machine start without the files if the object, or a key of
	// items, does not exist.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// KeyToPath makes a key a file.
type KeyToPath struct {
	// key is the key in the data.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +required
	Key string `json:"key"`
	// path is the path of the file below mountPath, for example tls/key.pem. It may have
	// folders. It must not begin with .., and not have . or .. as a folder.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^([^/.\p{C}\p{Zl}\p{Zp}]|[.][^/.\p{C}\p{Zl}\p{Zp}])[^/\p{C}\p{Zl}\p{Zp}]*(/(([^/.\p{C}\p{Zl}\p{Zp}]|[.][^/.\p{C}\p{Zl}\p{Zp}])[^/\p{C}\p{Zl}\p{Zp}]*|[.][.][^/\p{C}\p{Zl}\p{Zp}]+))*$`
	// +required
	Path string `json:"path"`
	// mode is the permissions of the file: 0 to 0777, defaultMode by default.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=511
	// +optional
	Mode *int32 `json:"mode,omitempty"`
}

// Volume is a disk in addition to the root disk.
//
// +kubebuilder:validation:XValidation:rule=`(has(self.source) && has(self.source.image) && has(self.source.image.source) ? self.source.image.source : "") == (has(oldSelf.source) && has(oldSelf.source.image) && has(oldSelf.source.image.source) ? oldSelf.source.image.source : "") && (has(self.source) && has(self.source.image) && has(self.source.image.checksum) ? self.source.image.checksum : "") == (has(oldSelf.source) && has(oldSelf.source.image) && has(oldSelf.source.image.checksum) ? oldSelf.source.image.checksum : "")`,fieldPath=".source",message="source and checksum of a volume's image are immutable: the volume is made from it once, so another one needs a volume of another name"
type Volume struct {
	// name is the name of the volume. A Linux guest finds the disk as
	// /dev/disk/by-id/virtio-<name>.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// size is the size of the volume in bytes, 1Mi to 1Pi, for example 10G. It may
	// only grow.
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Pi')) <= 0",message="size must be a quantity from 1Mi to 1Pi, for example 10G",messageExpression="'size is ' + string(self) + ': it must be a quantity from 1Mi to 1Pi, for example 10G'"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",message="size may only grow",messageExpression="'size may only grow: it was ' + string(oldSelf) + ' and is now ' + string(self)"
	// +required
	Size resource.Quantity `json:"size"`
	// source is the initial content of the volume. Without it, the volume is
	// blank. The source and checksum of its image are immutable.
	// +optional
	Source *VolumeSource `json:"source,omitempty"`
	// readOnly makes the disk read-only for the guest.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`
	// mountPath is the folder on which a server of a container image finds the files
	// of the volume, an absolute path. A new volume gets a file system and a copy of
	// the image's files there.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches('[^/]{256}')",message="each name in the path may have at most 255 characters"
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.matches('(/[.]{0,2})(/|$)')",message="mountPath must be an absolute path without '.', '..', '//' and a '/' at its end, for example /srv/data"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^/(etc|(proc|sys|dev)(/.*)?)$')",message="mountPath must not be /etc or in /proc, /sys or /dev"
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]')`,message="control characters, and those that no one sees or that change the direction of writing, are not allowed"
	// +optional
	MountPath string `json:"mountPath,omitempty"`
}

// VolumeSource is the initial content of a volume.
//
// +kubebuilder:validation:XValidation:rule="!has(self.image) || (has(self.image.source) && !has(self.image.kernel))",fieldPath=".image",message="source is required and kernel is not allowed: a volume is not booted"
type VolumeSource struct {
	// image is copied into the volume once, when the volume is created.
	// +optional
	Image *Image `json:"image,omitempty"`
}

// DataSource is a text, either inline or from a Secret.
//
// +kubebuilder:validation:XValidation:rule="has(self.inline) != has(self.secretKeyRef)",message="exactly one of inline and secretKeyRef is required"
type DataSource struct {
	// inline is the text itself. Everyone who may read the VirtualMachine can read
	// it.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	Inline *string `json:"inline,omitempty"`
	// secretKeyRef selects a key of a Secret in the namespace of the
	// VirtualMachine. A change of the Secret alone has no effect: it is read at
	// the next change of the VirtualMachine.
	// +optional
	SecretKeyRef *SecretKeyRef `json:"secretKeyRef,omitempty"`
}

// SecretKeyRef selects a key of a Secret in the namespace of the
// VirtualMachine.
type SecretKeyRef struct {
	// name is the name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// key is the key in the data of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +required
	Key string `json:"key"`
}

// Protocol is the transport protocol of a port.
//
// +kubebuilder:validation:Enum=TCP;UDP
type Protocol string

// Values of Protocol.
const (
	// ProtocolTCP is TCP.
	ProtocolTCP Protocol = "TCP"
	// ProtocolUDP is UDP.
	ProtocolUDP Protocol = "UDP"
)

// Port is a port of the server that can be reached through the engine's host or, with
// driver pod, at the address of its pod.
type Port struct {
	// name is the name of the port, for example ssh.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// protocol is the transport protocol of the port: TCP or UDP.
	// +default="TCP"
	// +optional
	Protocol Protocol `json:"protocol,omitempty"`
	// port is the number of the port in the server.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`
	// hostPort is the number of the port on the engine's host. Without it, the
	// engine chooses one; status.ports shows it.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	HostPort int32 `json:"hostPort,omitempty"`
	// hostIP is the address of the engine's host on which the port is opened, for
	// example 127.0.0.1. Empty means all addresses of the host.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip.isCanonical(self)",message="hostIP must be an IP address in its usual form, for example 127.0.0.1 or ::1",messageExpression="'hostIP is ' + self + ': it must be an IP address in its usual form, for example 127.0.0.1 or ::1'"
	// +optional
	HostIP string `json:"hostIP,omitempty"`
}

// Probe is a check that succeeds when the server accepts a connection.
type Probe struct {
	// tcpSocket is the port that must accept a TCP connection.
	// +required
	TCPSocket TCPSocket `json:"tcpSocket"`
	// periodSeconds is the time in seconds between two checks.
	// +default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// timeoutSeconds is the time in seconds after which a check fails.
	// +default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// TCPSocket is a TCP port of the server.
type TCPSocket struct {
	// port is the number of the port in the server. Under pod it must be the
	// port of one of spec.ports.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`
}

// Phase is a summary of the status in one word.
//
// +kubebuilder:validation:Enum=Creating;Active;Stopped;Paused;Failed;Terminating;Unknown
type Phase string

// The phases. A VirtualMachine that no controller has seen has none.
const (
	// PhaseCreating means that the server is being created or started, or its image
	// is being fetched.
	PhaseCreating Phase = "Creating"
	// PhaseActive means that the server runs, also while it is being stopped or
	// restarted.
	PhaseActive Phase = "Active"
	// PhaseStopped means that the server is off because the spec says so, or
	// because it ended successfully and its restart policy leaves it off.
	PhaseStopped Phase = "Stopped"
	// PhasePaused means that the server is frozen because the spec says so, or it
	// waits for a disk of the host.
	PhasePaused Phase = "Paused"
	// PhaseFailed means that the server does not exist or is off, and the step to
	// change that failed.
	PhaseFailed Phase = "Failed"
	// PhaseTerminating means that the VirtualMachine is being deleted.
	PhaseTerminating Phase = "Terminating"
	// PhaseUnknown means that the engine cannot be asked about the server. Nothing
	// is created, changed or deleted meanwhile.
	PhaseUnknown Phase = "Unknown"
)

// VirtualMachineStatus is the observed state of a server.
type VirtualMachineStatus struct {
	// conditions describe the server by type:
	// - Ready: the server is as the spec says.
	// - Running: the server runs.
	// - Observed: the engine answers about the server.
	// - RestartRequired: a change waits for a restart. Absent otherwise.
	// - DeletionBlocked: the deletion cannot complete. Absent otherwise.
	// - Stalled: only a change of the spec can help. Absent otherwise.
	// - Confined: the machine runs as another user than Drover's, or under Landlock. Absent
	//   while it is off, and where the driver leaves that to its engine.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status describes.
	// It is -1 until a controller has seen the VirtualMachine.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase is a summary of the status in one word, empty until a controller has
	// seen the VirtualMachine:
	// - Creating: the server is being created or started, or its image is being
	//   fetched.
	// - Active: the server runs.
	// - Stopped: the server is off, as desired or because it ended successfully.
	// - Paused: the server is frozen, as desired or because it waits for a disk of
	//   the host.
	// - Failed: the server does not exist or is off, and the step to change that
	//   failed.
	// - Terminating: the VirtualMachine is being deleted.
	// - Unknown: the engine cannot be asked about the server.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// reason is the reason for the phase, as one word in CamelCase.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// message describes the reason for people.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
	// driver is the name of the driver that runs the server.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Driver string `json:"driver,omitempty"`
	// binding is the engine that has the server. It is written with the first
	// status and never changes. In a copy of another VirtualMachine, which has
	// another UID, it is ignored.
	// +optional
	Binding *Binding `json:"binding,omitempty"`
	// server is the server that the driver runs.
	// +optional
	Server *ServerStatus `json:"server,omitempty"`
	// objects are the objects of the cluster that the server consists of, or is about
	// to. Other objects of these names are not the server's.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Objects []ServerObject `json:"objects,omitempty"`
	// addresses are the addresses at which the server can be reached while it runs:
	// first the server's, then, for a machine of driver qemu, addresses of the host
	// whose ports lead to it.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// ports are the ports of the engine's host that lead to the server while it
	// runs.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Ports []PortStatus `json:"ports,omitempty"`
	// operation is the step that is in progress or failing.
	// +optional
	Operation *Operation `json:"operation,omitempty"`
	// pendingFields are the fields of the spec that take effect at the next
	// restart.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	PendingFields []string `json:"pendingFields,omitempty"`
	// refusedField is the field of the spec that cannot be applied to the existing
	// server. The rest of the spec is applied.
	// +optional
	RefusedField *RefusedField `json:"refusedField,omitempty"`
	// restartedAt is the last spec.restartedAt that was handled.
	// +optional
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
	// restartCount is the number of times that the server was started again.
	// +kubebuilder:validation:Minimum=0
	// +optional
	RestartCount int64 `json:"restartCount,omitempty"`
	// startTime is when the last run of the server began.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// lastUpdateTime is when this status was written.
	// +optional
	LastUpdateTime *metav1.MicroTime `json:"lastUpdateTime,omitempty"`
}

// Binding identifies the engine that has a server.
type Binding struct {
	// driver is the name of the driver that runs the server.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Driver string `json:"driver"`
	// engineID is the lasting identity of the engine.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +required
	EngineID string `json:"engineID"`
	// uid is the UID of the VirtualMachine that is bound.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// RefusedField is a field of the spec that cannot be applied to the existing
// server.
type RefusedField struct {
	// field is the name of the field in the spec, for example image.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Field string `json:"field"`
	// reason is the reason for the refusal, as one word in CamelCase.
	// +kubebuilder:validation:MaxLength=256
	// +required
	Reason string `json:"reason"`
	// message says why the field is refused, and names the alternatives.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// PortStatus is a port of the engine's host that leads to the server.
type PortStatus struct {
	// name is the name of the port in spec.ports. It is empty if the spec no
	// longer has the port.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Name string `json:"name,omitempty"`
	// protocol is the transport protocol of the port: TCP or UDP.
	// +required
	Protocol Protocol `json:"protocol"`
	// port is the number of the port in the server.
	// +required
	Port int32 `json:"port"`
	// hostPort is the number of the port on the host: that of the spec, or the one
	// that was chosen.
	// +required
	HostPort int32 `json:"hostPort"`
	// hostIP is the address of the host on which the port is open. Empty means all
	// addresses of the host.
	// +kubebuilder:validation:MaxLength=45
	// +optional
	HostIP string `json:"hostIP,omitempty"`
}

// ServerObject is an object of the cluster in the namespace of the VirtualMachine that
// belongs to a server.
type ServerObject struct {
	// kind is the kind of the object, such as Pod or PersistentVolumeClaim.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Kind string `json:"kind"`
	// name is the name of the object.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// nonce is a random value that the object carries, recorded before it is created.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Nonce string `json:"nonce,omitempty"`
	// uid is the UID of the object, empty until it is known to exist.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	UID string `json:"uid,omitempty"`
	// ended is true once it is proven that a Pod has ended.
	// +optional
	Ended bool `json:"ended,omitempty"`
	// made is true once the disk of a PersistentVolumeClaim was made. It is never made
	// again.
	// +optional
	Made bool `json:"made,omitempty"`
	// images are the images that the spec of a Pod names by tag, and the image from
	// which the disk of a PersistentVolumeClaim was made.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Images []ResolvedImage `json:"images,omitempty"`
}

// ResolvedImage is the result of resolving the tag of an image.
type ResolvedImage struct {
	// source is the image as the spec, or the default of the controller, names it.
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Source string `json:"source"`
	// digest is the digest that the tag had just before the Pod was created. The Pod
	// names the image by it, and so do later ones as long as the spec names the same
	// source.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Digest string `json:"digest,omitempty"`
	// message says why the tag was not resolved. Each node resolves it then.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// unproven is true until a container has been created from the digest. If a Pod
	// ends on a node without that, digest is empty and later Pods name the tag, as
	// long as the spec names the same source.
	// +optional
	Unproven bool `json:"unproven,omitempty"`
}

// ServerStatus is the status of the server that a driver runs for a VirtualMachine.
type ServerStatus struct {
	// id is the engine's identifier of the server.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ID string `json:"id,omitempty"`
	// state is the state of the server in the words of the engine.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	State string `json:"state,omitempty"`
	// generation is the last generation of the spec that was passed to the driver
	// successfully. It is absent after a restart until the driver confirms whether the
	// pendingFields were applied.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// stoppedRun identifies the run of the server that was ended because
	// spec.action said so. Such a server is started again whatever its
	// restartPolicy.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	StoppedRun string `json:"stoppedRun,omitempty"`
	// run identifies the last run of the server in which it was seen to run.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Run string `json:"run,omitempty"`
	// imageID is the digest of the image from which the server was created.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ImageID string `json:"imageID,omitempty"`
	// unpublishedPorts are ports such as 80/tcp that the container image of a server
	// that runs declares (EXPOSE) and spec.ports lacks: the 32 lowest.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=16
	// +listType=atomic
	// +optional
	UnpublishedPorts []string `json:"unpublishedPorts,omitempty"`
	// terminated says how the last run of the server ended. It is absent during a
	// run.
	// +optional
	Terminated *ServerTerminated `json:"terminated,omitempty"`
	// accelerator is how the instructions of the guest are executed, empty if the
	// server is not a machine:
	// - kvm: by the CPU of the host.
	// - tcg: by emulation, which is slower.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Accelerator string `json:"accelerator,omitempty"`
	// usage is the last sample of the server's usage.
	// +optional
	Usage *Usage `json:"usage,omitempty"`
}

// ServerTerminated says how a run of a server ended.
type ServerTerminated struct {
	// exitCode is the exit code of the run: 128 and the number of the signal if
	// one ended it.
	// +required
	ExitCode int32 `json:"exitCode"`
	// signal is the number of the signal that ended the command of a container
	// image's machine. Under driver docker it is not known.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=64
	// +optional
	Signal int32 `json:"signal,omitempty"`
	// reason is how the run ended, as one word in CamelCase, for example
	// Completed, Error or OOMKilled.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// message is the guest's description of the end, for example that the command
	// was not found.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// Usage is the usage of a server, in per cent and rounded to 0.01.
type Usage struct {
	// cpu is the CPU time in per cent of one CPU: 200 means two busy CPUs.
	// +kubebuilder:validation:Minimum=0
	// +required
	CPU float64 `json:"cpu"`
	// memory is the memory in per cent of the memory of the VirtualMachine.
	// +kubebuilder:validation:Minimum=0
	// +required
	Memory float64 `json:"memory"`
}

// OperationType is a step that is taken for a VirtualMachine.
//
// +kubebuilder:validation:Enum=Create;Start;Stop;Pause;Resume;Restart;Update;Delete;Release
type OperationType string

// Values of OperationType.
const (
	// OperationCreate creates the server.
	OperationCreate OperationType = "Create"
	// OperationStart starts the server.
	OperationStart OperationType = "Start"
	// OperationStop shuts the server down.
	OperationStop OperationType = "Stop"
	// OperationPause freezes the server.
	OperationPause OperationType = "Pause"
	// OperationResume continues a frozen server.
	OperationResume OperationType = "Resume"
	// OperationRestart stops the server and starts it again.
	OperationRestart OperationType = "Restart"
	// OperationUpdate applies a change of the spec to the server.
	OperationUpdate OperationType = "Update"
	// OperationDelete removes the server and everything that belongs to it.
	OperationDelete OperationType = "Delete"
	// OperationRelease leaves the server running and no longer managed.
	OperationRelease OperationType = "Release"
)

// OperationFailure is a kind of failure. It determines the time until the next
// try.
//
// +kubebuilder:validation:Enum=Failed;Exhausted;Refused;Exited
type OperationFailure string

// Values of OperationFailure.
const (
	// FailureFailed is an error of the engine. It is retried after 1 second, with
	// delays that double up to 5 minutes.
	FailureFailed OperationFailure = "Failed"
	// FailureExhausted means that the engine lacks a resource, such as memory. It
	// is retried after 30 seconds, with delays that double up to 5 minutes.
	FailureExhausted OperationFailure = "Exhausted"
	// FailureRefused means that only a change of the spec can help. It is retried
	// once after a restart of the controller.
	FailureRefused OperationFailure = "Refused"
	// FailureExited means that the server was started and ended too soon. It is
	// retried like Failed.
	FailureExited OperationFailure = "Exited"
)

// Operation is a step that is in progress or failing.
type Operation struct {
	// type is the step: Create, Start, Stop, Pause, Resume, Restart, Update,
	// Delete or Release.
	// +required
	Type OperationType `json:"type"`
	// generation is the generation of the spec that the step applies.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// attempts is the number of times that the step has failed in a row.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// startedAt is when the step was first tried.
	// +required
	StartedAt metav1.MicroTime `json:"startedAt"`
	// evicted is set while attempts counts starts after evictions by the kubelet.
	// Such a start counts until a run has lasted 10 minutes.
	// +optional
	Evicted bool `json:"evicted,omitempty"`
	// nextRetryTime is when the step will be tried again.
	// +optional
	NextRetryTime *metav1.MicroTime `json:"nextRetryTime,omitempty"`
	// failure is the kind of the last failure, empty before the first. It
	// determines the time until the next try:
	// - Failed: an error of the engine.
	// - Exhausted: the engine lacks a resource, such as memory.
	// - Refused: only a change of the spec can help.
	// - Exited: the server was started and ended too soon.
	// +optional
	Failure OperationFailure `json:"failure,omitempty"`
	// reason is the reason for the last failure, as one word in CamelCase.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// lastError is the error of the last failure.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	LastError string `json:"lastError,omitempty"`
	// run identifies the run of the server that a restart ends, or that ended by
	// itself before the start.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Run string `json:"run,omitempty"`
	// restartedAt is the spec.restartedAt that caused a restart. A later value
	// causes another restart.
	// +optional
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
	// epoch is the number of the leader that took the step. It grows with each
	// change of leader.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
}
