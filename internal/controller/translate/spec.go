// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
)

// ServerSpec translates a VirtualMachine, without what secrets.Resolve fills in, for the driver.
func ServerSpec(vm *api.VirtualMachine) driver.ServerSpec {
	r := resourcesOf(vm)
	spec := driver.ServerSpec{
		Target:    driver.Target{UID: vm.UID},
		Namespace: vm.Namespace, Name: vm.Name,
		CPUMilli: r.CPUMilli, MemoryBytes: r.MemoryBytes, RootDiskBytes: r.RootDiskBytes,
		SSHKeys:       vm.Spec.SSHAuthorizedKeys,
		RestartPolicy: driver.RestartPolicy(vm.Spec.RestartPolicy),
		GracePeriod:   gracePeriodOf(vm),
		Command:       vm.Spec.Command, Args: vm.Spec.Args, WorkingDir: vm.Spec.WorkingDir,

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
	for _, v := range vm.Spec.Volumes {
		spec.Volumes = append(spec.Volumes, volumeOf(v))
	}
	for _, p := range vm.Spec.Ports {
		spec.Ports = append(spec.Ports, driver.Port{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port, HostPort: p.HostPort, HostIP: p.HostIP})
	}
	return spec
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
	out := driver.Volume{Name: v.Name, SizeBytes: v.Size.Value(), ReadOnly: v.ReadOnly}
	if v.Source != nil {
		out.Image = imageOf(v.Source.Image)
	}
	return out
}

// Objects returns what the status has recorded of the server's objects, for the driver.
func Objects(vm *api.VirtualMachine) []driver.Object {
	var all []driver.Object
	for _, o := range vm.Status.Objects {
		one := driver.Object{Kind: o.Kind, Name: o.Name, Nonce: o.Nonce, UID: types.UID(o.UID), Ended: o.Ended, Made: o.Made}
		for _, i := range o.Images {
			one.Images = append(one.Images, driver.ResolvedImage(i))
		}
		all = append(all, one)
	}
	return all
}

// ObjectStatuses returns the objects of a server as a status records them.
func ObjectStatuses(objects []driver.Object) []api.ServerObject {
	var all []api.ServerObject
	for _, o := range objects {
		one := api.ServerObject{Kind: o.Kind, Name: o.Name, Nonce: o.Nonce, UID: string(o.UID), Ended: o.Ended, Made: o.Made}
		for _, i := range o.Images {
			one.Images = append(one.Images, api.ResolvedImage(i))
		}
		all = append(all, one)
	}
	return all
}

// Terminated returns how a run ended as a status has it, or nil during a run.
func Terminated(exit *driver.Exit) *api.ServerTerminated {
	if exit == nil {
		return nil
	}
	const maxReason = 256                                     // what the schema allows
	code := min(max(exit.Code, math.MinInt32), math.MaxInt32) // it may be what a guest claims
	return &api.ServerTerminated{ExitCode: int32(code), Reason: exit.Reason[:min(len(exit.Reason), maxReason)], Message: exit.Message}
}

// PortStatuses gives open ports the names that the spec has for them.
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
