// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/kvm"
	"cloudnative.tw/drover/internal/format"
	"cloudnative.tw/drover/internal/machine/description"
)

const (
	// ContainerName is the name of the container that runs the machine.
	ContainerName = "machine"
	// gateStopped is the scheduling gate of a pod that is not ready to run, or is to be off.
	gateStopped = "cloudnative.tw/stopped"
	// machineUser is the user ID in the image of drover-machine.
	machineUser = 65532

	descriptionFolder = "/etc/drover-machine"
	imageFolder       = "/image"
	diskFolder        = "/disk"
	volumesFolder     = "/volumes"
	volumeImageFolder = "/images"
	secretFolder      = "/secret"
	// runFolder is for sockets and the disk for cloud-init. It is in the memory file system that every
	// container has, since drain refuses pods with an emptyDir.
	runFolder = "/dev/shm/drover-machine"

	// diskVolume is the name of the pod's volume with the root disk.
	diskVolume = "disk"
	// secretVolume is the name of the pod's volume with its Secret.
	secretVolume = "secret"
	// ControlPortName is the name of the container port by which Drover controls the machine.
	ControlPortName  = "drover-control"
	firstControlPort = 7443
)

// MinimalGrace is the least grace period of a pod, in seconds: with 0 its object is removed before the
// kubelet has reported anything.
const MinimalGrace = 1

// QuitMargin is how many seconds the grace period of a pod lasts after the one of its guest.
// drover-machine uses them to end QEMU before the kubelet kills it.
const QuitMargin = 3

// graceSeconds returns the grace period of a pod.
func graceSeconds(spec driver.ServerSpec) int64 {
	return max(MinimalGrace, int64(spec.GracePeriod.Seconds())) + QuitMargin
}

// Run has the parts of a pod that do not follow from the spec.
type Run struct {
	Nonce string
	// Images are the results of resolving tags of images.
	Images  []driver.ResolvedImage
	Disks   map[string]DiskSettings
	Digests Digests
	// Made are the disks that an earlier run has made, by name, with the images that they were made from.
	Made map[string]driver.ResolvedImage
	// Root is the PVC of the root disk, nil if there is none.
	Root *corev1.PersistentVolumeClaim
	KVM  kvm.Choice
	// Ungated is set if the scheduler may place the pod at once.
	Ungated bool
}

// NewPod returns the pod of a server, with a scheduling gate unless it is Ungated.
func (t *Template) NewPod(spec driver.ServerSpec, run Run) (*corev1.Pod, error) {
	described := t.newDescription(spec, run)
	described.Accelerator = run.KVM.Accelerator
	description, err := format.Encode(described)
	if err != nil {
		return nil, err
	}
	settings := t.Settings(spec, run.Digests)
	settings.Disks, settings.Images = run.Disks, run.Images
	if from, isMade := run.Made[RootDisk]; isMade {
		settings.MadeFrom = &from
	}
	kept, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	p := &corev1.Pod{ObjectMeta: t.newMeta(spec, BaseName(spec.Name, spec.UID), run.Nonce), Spec: t.podSpec(spec, run)}
	container := MachineContainer(p)
	container.StartupProbe = startupProbe(!spec.Ephemeral || described.RootDisk.NeedsCopy())
	t.SetMeta(p, spec, run.Root)
	p.Finalizers = []string{FinalizerStopped}
	p.Annotations[AnnotationMachine], p.Annotations[AnnotationSettings] = string(description), string(kept)
	run.KVM.AddTo(&container.Resources)
	if !run.Ungated {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gateStopped}}
	}
	return p, nil
}

// SetMeta gives a pod the metadata that follows the spec: the labels of the VirtualMachine, the owner, whether
// evictions are refused, and the address that the readiness probe asks.
func (t *Template) SetMeta(p *corev1.Pod, spec driver.ServerSpec, root *corev1.PersistentVolumeClaim) {
	p.OwnerReferences = ownersOf(spec, root)
	t.SetOwnLabels(p, spec)
	SetLabels(p, spec.Labels)
	delete(p.Annotations, AnnotationEviction)
	if spec.BlockEviction {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, AnnotationEviction, EvictionBlock)
	}
	setReadinessAnnotation(p, spec)
}

// ownersOf returns the owner of a pod, since drain evicts only pods that have one. It is the VirtualMachine,
// unless the pod has to outlive it.
func ownersOf(spec driver.ServerSpec, root *corev1.PersistentVolumeClaim) []metav1.OwnerReference {
	switch {
	case !spec.RetainOnDelete:
		return vmOwner(spec)
	case root != nil:
		return ClaimOwner(root)
	}
	return nil
}

// vmOwner returns the reference to a VirtualMachine that is the controller of an object. The reference
// does not delay the deletion of the VirtualMachine, since that has a finalizer.
func vmOwner(spec driver.ServerSpec) []metav1.OwnerReference {
	return newOwner("cloudnative.tw/v1alpha1", "VirtualMachine", spec.Name, spec.UID)
}

// ClaimOwner returns the reference to a PVC that is the controller of an object.
func ClaimOwner(claim *corev1.PersistentVolumeClaim) []metav1.OwnerReference {
	return newOwner("v1", KindClaim, claim.Name, claim.UID)
}

// newOwner returns the reference to an object that is the controller of another one.
func newOwner(version, kind, name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: uid, Controller: new(true), BlockOwnerDeletion: new(false)}}
}

// podSpec returns the spec of a pod without the parts that NewPod adds.
func (t *Template) podSpec(spec driver.ServerSpec, run Run) corev1.PodSpec {
	p := spec.Placement
	return corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: new(graceSeconds(spec)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(machineUser)), RunAsGroup: new(int64(machineUser)), FSGroup: new(int64(machineUser)),
			FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
			SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{t.machineContainer(spec, run)}, Volumes: t.podVolumes(spec, run),
		NodeSelector: p.NodeSelector, Affinity: p.Affinity, TopologySpreadConstraints: p.TopologySpreadConstraints,
		PriorityClassName: p.PriorityClassName, RuntimeClassName: p.RuntimeClassName,
		Tolerations: append(nodeTolerations(), p.Tolerations...),
	}
}

// nodeTolerations keep a pod on a node that does not answer, since its guest may still run.
func nodeTolerations() []corev1.Toleration {
	return []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
}

// machineContainer returns the container of the machine.
func (t *Template) machineContainer(spec driver.ServerSpec, run Run) corev1.Container {
	amounts := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(spec.CPUMilli, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(spec.MemoryBytes+t.MemoryOverheadBytes, resource.BinarySI),
	}
	if spec.Ephemeral {
		amounts[corev1.ResourceEphemeralStorage] = ephemeralStorage(spec)
	}
	c := corev1.Container{
		Name: ContainerName, Image: t.MachineImage, Args: []string{"--run-folder", runFolder}, Stdin: true,
		Env:            []corev1.EnvVar{{Name: description.NodeAddresses, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIPs"}}}},
		ReadinessProbe: readinessProbe(spec.ReadinessProbe),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		Resources: corev1.ResourceRequirements{Requests: amounts, Limits: amounts.DeepCopy()},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "description", MountPath: descriptionFolder, ReadOnly: true},
			{Name: secretVolume, MountPath: secretFolder, ReadOnly: true},
			{Name: diskVolume, MountPath: diskFolder},
		},
	}
	if t.needsImage(spec, run) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: imageVolume, MountPath: imageFolder, ReadOnly: true})
	}
	for _, v := range spec.Volumes {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "volume-" + v.Name, MountPath: path.Join(volumesFolder, v.Name)})
		if needsImage(v, run) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "image-" + v.Name, MountPath: path.Join(volumeImageFolder, v.Name), ReadOnly: true})
		}
	}
	for _, p := range spec.Ports {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: portName(p.Name), ContainerPort: p.Port, Protocol: corev1.Protocol(p.Protocol)})
	}
	c.Ports = append(c.Ports, corev1.ContainerPort{Name: ControlPortName, ContainerPort: controlPort(spec), Protocol: corev1.ProtocolTCP})
	return c
}

// controlPort returns the port of the machine's control channel, which is one that the guest does not use.
func controlPort(spec driver.ServerSpec) int32 {
	port := int32(firstControlPort)
	for slices.ContainsFunc(spec.Ports, func(p driver.Port) bool { return p.Port == port }) {
		port++
	}
	return port
}

// ControlPortOf returns the port of the control channel of a pod's machine. A foreign pod may have none.
func ControlPortOf(p *corev1.Pod) (port int32, ok bool) {
	c := MachineContainer(p)
	if c == nil {
		return 0, false
	}
	n := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == ControlPortName })
	if n < 0 {
		return 0, false
	}
	return c.Ports[n].ContainerPort, true
}

// LeadsToGuest reports whether a TCP port of a pod leads to the guest of its machine.
func LeadsToGuest(p *corev1.Pod, port int32) bool {
	c := MachineContainer(p)
	return c != nil && slices.ContainsFunc(c.Ports, func(have corev1.ContainerPort) bool {
		return have.ContainerPort == port && have.Protocol != corev1.ProtocolUDP && have.Name != ControlPortName
	})
}

// MachineContainer returns the container of a pod that runs the machine, nil if there is none. Webhooks
// may have added others before it.
func MachineContainer(p *corev1.Pod) *corev1.Container {
	n := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == ContainerName })
	if n < 0 {
		return nil
	}
	return &p.Spec.Containers[n]
}

// MachineStatus returns the reported status of the machine's container, nil if there is none.
func MachineStatus(p *corev1.Pod) *corev1.ContainerStatus {
	n := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == ContainerName })
	if n < 0 {
		return nil
	}
	return &p.Status.ContainerStatuses[n]
}

// endDeadline, in seconds, is the activeDeadlineSeconds by which Drover ends the containers that a machine
// which has ended leaves in its pod. The pod has been active for longer than that, or is a second later.
const endDeadline = 1

// SetEndDeadline has the kubelet end all containers of a pod, within the grace period of the pod. Other than
// after a deletion the object stays, and shows how the machine ended.
func SetEndDeadline(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(endDeadline)) }

// HasEndDeadline reports whether SetEndDeadline was called for a pod.
func HasEndDeadline(p *corev1.Pod) bool {
	return p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds == endDeadline
}

// IsEphemeral reports whether the root disk of a pod is removed with the pod.
func IsEphemeral(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == diskVolume && v.EmptyDir != nil })
}

// RequestedOf returns a resource if the machine's container requests it, and else "".
func RequestedOf(p *corev1.Pod, resource corev1.ResourceName) corev1.ResourceName {
	if c := MachineContainer(p); c != nil {
		if _, requests := c.Resources.Requests[resource]; requests {
			return resource
		}
	}
	return ""
}

// UsesClaim reports whether a pod has a PVC among its volumes.
func UsesClaim(p *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// IsGated reports whether a pod has its scheduling gate.
func IsGated(p *corev1.Pod) bool { return slices.ContainsFunc(p.Spec.SchedulingGates, isGate) }

// RemoveGate removes the scheduling gate of a pod.
func RemoveGate(p *corev1.Pod) {
	p.Spec.SchedulingGates = slices.DeleteFunc(p.Spec.SchedulingGates, isGate)
}

// RemoveFinalizer removes Drover's finalizer from a pod.
func RemoveFinalizer(p *corev1.Pod) {
	p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == FinalizerStopped })
}

// isGate reports whether a scheduling gate is Drover's.
func isGate(g corev1.PodSchedulingGate) bool { return g.Name == gateStopped }

// portName returns the name of a port if a container can have it, and else "". Such a name has at most 15
// characters, with a letter among them.
func portName(name string) string {
	if len(name) > 15 || name == ControlPortName || !strings.ContainsAny(name, "abcdefghijklmnopqrstuvwxyz") || strings.Contains(name, "--") {
		return ""
	}
	return name
}

// podVolumes returns the volumes of a pod.
func (t *Template) podVolumes(spec driver.ServerSpec, run Run) []corev1.Volume {
	base := BaseName(spec.Name, spec.UID)
	volumes := []corev1.Volume{
		{Name: "description", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{annotationFile("machine.yaml", AnnotationMachine), annotationFile(readinessFile, AnnotationReadiness)},
		}}},
		{Name: secretVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: SecretName(base, run.Nonce), DefaultMode: new(int32(0o440))}}},
		{Name: diskVolume, VolumeSource: diskSource(spec, base)},
	}
	if t.needsImage(spec, run) {
		volumes = append(volumes, newImageVolume(imageVolume, t.rootImage(spec), run.Images))
	}
	for _, v := range spec.Volumes {
		volumes = append(volumes, corev1.Volume{Name: "volume-" + v.Name, VolumeSource: claimSource(ClaimName(base, v.Name))})
		if needsImage(v, run) {
			volumes = append(volumes, newImageVolume("image-"+v.Name, parseImage(*v.Image), run.Images))
		}
	}
	return volumes
}

// annotationFile gives the container an annotation of its pod as a file.
func annotationFile(name, annotation string) corev1.DownwardAPIVolumeFile {
	return corev1.DownwardAPIVolumeFile{Path: name, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + annotation + "']"}}
}

// newImageVolume returns a volume with a container disk.
func newImageVolume(name string, image diskImage, resolved []driver.ResolvedImage) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{
		Reference: imageReference(image.Source, resolved), PullPolicy: corev1.PullPolicy(image.pullPolicy),
	}}}
}

// diskSource returns the source of the volume with the root disk.
func diskSource(spec driver.ServerSpec, base string) corev1.VolumeSource {
	if spec.Ephemeral {
		return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(ClaimSize(spec.RootDiskBytes))}}
	}
	return claimSource(base)
}

func claimSource(claim string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
}

// newDescription returns the description that drover-machine reads.
func (t *Template) newDescription(spec driver.ServerSpec, run Run) description.Machine {
	own := identityOf(run.Root, spec.UID)
	m := description.Machine{
		Version: description.Version, UUID: own.uuid, MAC: own.mac, Name: hostName(spec.Name), CPUs: (spec.CPUMilli + 999) / 1000,
		MemoryBytes: spec.MemoryBytes, CloudInit: secretFolder, GracePeriodSeconds: graceSeconds(spec),
		Control:  &description.Control{Port: controlPort(spec), Folder: secretFolder},
		RootDisk: &description.RootDisk{Disk: description.Disk{Folder: diskFolder, SizeBytes: spec.RootDiskBytes}, Ephemeral: spec.Ephemeral},

		ImageMaxBytes: t.ImageMaxBytes,
	}
	if _, m.RootDisk.MustExist = run.Made[RootDisk]; !m.RootDisk.MustExist {
		describeImage(&m.RootDisk.Disk, t.rootImage(spec), imageFolder, run.Disks[RootDisk])
	}
	if k := spec.Image.Kernel; k != nil {
		m.Kernel = &description.Kernel{File: path.Join(imageFolder, k.Source), Cmdline: k.Cmdline}
		if k.Initrd != "" {
			m.Kernel.Initrd = path.Join(imageFolder, k.Initrd)
		}
	}
	for _, v := range spec.Volumes {
		described := description.Volume{Name: v.Name, ReadOnly: v.ReadOnly, Disk: description.Disk{Folder: path.Join(volumesFolder, v.Name), SizeBytes: v.SizeBytes}}
		if _, described.MustExist = run.Made[v.Name]; !described.MustExist && v.Image != nil {
			describeImage(&described.Disk, parseImage(*v.Image), path.Join(volumeImageFolder, v.Name), run.Disks[v.Name])
		}
		m.Volumes = append(m.Volumes, described)
	}
	for _, p := range spec.Ports {
		m.Forwards = append(m.Forwards, description.Forward{Protocol: strings.ToLower(p.Protocol), Port: p.Port})
	}
	return m
}

// hostName cuts a name to the length that the host name of a guest may have.
func hostName(vm string) string { return strings.Trim(vm[:min(len(vm), 63)], ".-") }

// Keys of the Secret of a server: files that drover-machine gives to cloud-init.
const (
	keyUserData    = "user-data"
	keyNetworkData = "network-data"
	keySSHKeys     = "ssh-keys"
)

// NewSecret returns the Secret of a pod with the texts of the spec and the machine's credentials of the
// control channel. It is deleted with the pod.
func (t *Template) NewSecret(spec driver.ServerSpec, pod *corev1.Pod, nonce string, control map[string][]byte) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: t.newMeta(spec, SecretOf(pod), nonce), StringData: map[string]string{}, Data: control, Immutable: new(true)}
	s.OwnerReferences = newOwner("v1", KindPod, pod.Name, pod.UID)
	for key, text := range map[string]string{
		keyUserData: spec.UserData.Reveal(), keyNetworkData: spec.NetworkData.Reveal(), keySSHKeys: strings.Join(spec.SSHKeys, "\n"),
	} {
		if text != "" {
			s.StringData[key] = text
		}
	}
	return s
}

// SecretOf returns the name of the Secret of a pod, "" if others have removed it from the volumes.
func SecretOf(p *corev1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.Name == secretVolume && v.Secret != nil {
			return v.Secret.SecretName
		}
	}
	return ""
}

// NewBudget returns the PodDisruptionBudget that makes the cluster refuse every eviction of the server. It
// has a number instead of a share, since a share needs a scale, which the owner of the pod lacks.
func (t *Template) NewBudget(spec driver.ServerSpec, nonce string) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: t.newMeta(spec, BaseName(spec.Name, spec.UID), nonce), Spec: budgetSpec(spec.UID)}
	b.OwnerReferences = vmOwner(spec)
	return b
}

// budgetSpec returns the spec of a PodDisruptionBudget that refuses evictions of a server.
func budgetSpec(uid types.UID) policyv1.PodDisruptionBudgetSpec {
	return policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromInt32(1)),
		Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{LabelUID: string(uid)}},
	}
}

// BlocksEviction reports whether a PodDisruptionBudget refuses every eviction of a server.
func BlocksEviction(b *policyv1.PodDisruptionBudget, uid types.UID) bool {
	return b.DeletionTimestamp == nil && equality.Semantic.DeepEqual(b.Spec, budgetSpec(uid))
}
