// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
)

// ServerSpec translates a VirtualMachine for the driver. It leaves out the values that secrets.Resolve fills in.
func ServerSpec(vm *api.VirtualMachine) driver.ServerSpec {
	r := resourcesOf(vm)
	spec := driver.ServerSpec{
		Target:    driver.Target{UID: vm.UID},
		Namespace: vm.Namespace, Name: vm.Name,
		CPUMilli: r.CPUMilli, MemoryBytes: r.MemoryBytes, RootDiskBytes: r.RootDiskBytes,
		SSHKeys:       vm.Spec.SSHAuthorizedKeys,
		RestartPolicy: driver.RestartPolicy(vm.Spec.RestartPolicy),
		GracePeriod:   gracePeriodOf(vm),
		Command:       vm.Spec.Command, Args: vm.Spec.Args, WorkingDir: vm.Spec.WorkingDir, User: vm.Spec.User, Init: driver.Init(vm.Spec.Init), Stdin: vm.Spec.Stdin, TTY: vm.Spec.TTY,

		Ephemeral: vm.Spec.Ephemeral, StorageClassName: vm.Spec.StorageClassName,
		BlockEviction:  vm.Spec.EvictionPolicy == api.EvictionBlock,
		Placement:      placementOf(vm),
		Labels:         vm.Labels,
		RetainOnDelete: vm.Spec.DeletionPolicy == api.DeletionRetain,
		ReadinessProbe: probeOf(vm.Spec.ReadinessProbe),
	}
	if vm.Status.Server != nil {
		spec.SeenRun = vm.Status.Server.Run
	}
	if image := imageOf(vm.Spec.Image); image != nil {
		spec.Image = *image
	}
	for _, s := range vm.Spec.Sysctls {
		spec.Sysctls = append(spec.Sysctls, driver.Sysctl{Name: normalizeSysctl(s.Name), Value: s.Value})
	}
	slices.SortFunc(spec.Sysctls, func(a, b driver.Sysctl) int { return strings.Compare(a.Name, b.Name) })
	for _, v := range vm.Spec.Volumes {
		spec.Volumes = append(spec.Volumes, volumeOf(v))
	}
	for _, f := range vm.Spec.Files {
		spec.Files = append(spec.Files, driver.FileMount{MountPath: f.MountPath})
	}
	for _, p := range vm.Spec.Ports {
		spec.Ports = append(spec.Ports, driver.Port{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port, HostPort: p.HostPort, HostIP: p.HostIP})
	}
	return spec
}

// normalizeSysctl returns the name of a sysctl with dots between its segments. In a name whose first separator is a slash, the dots
// are parts of segments.
func normalizeSysctl(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		return name
	}
	return strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

// resourcesOf returns spec.resource in the driver's units.
func resourcesOf(vm *api.VirtualMachine) driver.Resources {
	r := vm.Spec.Resource
	cpu, memory, disk := r[api.ResourceCPU], r[api.ResourceMemory], r[api.ResourceRootDisk]
	return driver.Resources{CPUMilli: cpu.MilliValue(), MemoryBytes: memory.Value(), RootDiskBytes: disk.Value()}
}

// gracePeriodOf returns how long a guest may take to shut down.
func gracePeriodOf(vm *api.VirtualMachine) time.Duration {
	if s := vm.Spec.ShutdownGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 30 * time.Second
}

func probeOf(p *api.Probe) *driver.Probe {
	if p == nil {
		return nil
	}
	return &driver.Probe{Port: p.TCPSocket.Port, PeriodSeconds: max(p.PeriodSeconds, 1), TimeoutSeconds: max(p.TimeoutSeconds, 1)}
}

func placementOf(vm *api.VirtualMachine) driver.Placement {
	return driver.Placement{
		NodeSelector: vm.Spec.NodeSelector, Affinity: vm.Spec.Affinity, Tolerations: vm.Spec.Tolerations,
		TopologySpreadConstraints: vm.Spec.TopologySpreadConstraints,
		PriorityClassName:         vm.Spec.PriorityClassName, RuntimeClassName: optionalText(vm.Spec.RuntimeClassName),
	}
}

// optionalText returns nil for an empty text.
func optionalText(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func imageOf(image *api.Image) *driver.Image {
	if image == nil {
		return nil
	}
	out := &driver.Image{Source: image.Source, Checksum: image.Checksum, PullPolicy: driver.PullPolicy(image.PullPolicy)}
	if k := image.Kernel; k != nil {
		out.Kernel = &driver.Kernel{Source: k.Source, Initrd: k.Initrd, Cmdline: k.Cmdline}
	}
	return out
}

func volumeOf(v api.Volume) driver.Volume {
	out := driver.Volume{Name: v.Name, SizeBytes: v.Size.Value(), ReadOnly: v.ReadOnly, MountPath: v.MountPath}
	if v.Source != nil {
		out.Image = imageOf(v.Source.Image)
	}
	return out
}

// Objects returns the server's objects, as the status records them, for the driver.
func Objects(vm *api.VirtualMachine) []driver.Object {
	var all []driver.Object
	for _, o := range vm.Status.Objects {
		object := driver.Object{Kind: o.Kind, Name: o.Name, Nonce: o.Nonce, UID: types.UID(o.UID), Ended: o.Ended, Made: o.Made}
		for _, i := range o.Images {
			object.Images = append(object.Images, driver.ResolvedImage(i))
		}
		all = append(all, object)
	}
	return all
}

// ObjectStatuses returns the objects of a server as a status records them.
func ObjectStatuses(objects []driver.Object) []api.ServerObject {
	var all []api.ServerObject
	for _, o := range objects {
		object := api.ServerObject{Kind: o.Kind, Name: o.Name, Nonce: o.Nonce, UID: string(o.UID), Ended: o.Ended, Made: o.Made}
		for _, i := range o.Images {
			object.Images = append(object.Images, api.ResolvedImage(i))
		}
		all = append(all, object)
	}
	return all
}

// Terminated returns how a run ended, in the form of a status, or nil during a run.
func Terminated(exit *driver.Exit) *api.ServerTerminated {
	if exit == nil {
		return nil
	}
	const maxReason = 256                                     // the limit of the schema
	code := min(max(exit.Code, math.MinInt32), math.MaxInt32) // a guest may claim any code
	return &api.ServerTerminated{
		ExitCode: int32(code), Signal: int32(exit.Signal), //nolint:gosec // a signal's number
		Reason: exit.Reason[:min(len(exit.Reason), maxReason)], Message: exit.Message,
	}
}

// PortStatuses returns the open ports with the names that the spec gives them.
func PortStatuses(requested []api.Port, open []driver.Port) []api.PortStatus {
	var all []api.PortStatus
	unused := slices.Clone(requested)
	for _, o := range open {
		next := api.PortStatus{Protocol: api.Protocol(o.Protocol), Port: o.Port, HostPort: o.HostPort, HostIP: o.HostIP}
		n := indexOf(unused, next, o.HostPort)
		if n < 0 {
			n = indexOf(unused, next, 0)
		}
		if n >= 0 {
			next.Name = unused[n].Name
			unused = slices.Delete(unused, n, n+1)
		}
		all = append(all, next)
	}
	return all
}

func indexOf(ports []api.Port, open api.PortStatus, hostPort int32) int {
	return slices.IndexFunc(ports, func(p api.Port) bool {
		return p.Protocol == open.Protocol && p.Port == open.Port && p.HostPort == hostPort
	})
}
