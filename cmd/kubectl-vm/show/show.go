// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

type showOptions struct {
	*kit.Options
	output kit.OutputFlag
}

// NewShowCommand returns the command show.
func NewShowCommand(o *kit.Options) *cobra.Command {
	s := &showOptions{Options: o}
	cmd := &cobra.Command{
		Use:        "show NAME...",
		SuggestFor: []string{"describe"},
		GroupID:    kit.GroupObserve,
		Short:      "Show a VM on half a screen",
		Long: "Show what a VM is, where it runs, how to reach it and how much it uses. explain says why it is\n" +
			"not ready.",
		Example: o.FormatExamples("show web", "show web -o yaml", "show web -o jsonpath='{.status.addresses[0]}'"),
		Args:    kit.RequireNames,
		RunE:    func(cmd *cobra.Command, args []string) error { return s.showVMs(cmd.Context(), args) },

		ValidArgsFunction: vms.CompleteVMs(o),
	}
	s.output.AddFlag(cmd)
	return cmd
}

func (s *showOptions) showVMs(ctx context.Context, args []string) error {
	selection := vms.Selection{}
	if err := errors.Join(selection.ParseNames(args), s.output.Check()); err != nil {
		return err
	}
	namespace, err := s.Namespace()
	if err != nil {
		return err
	}
	for i, name := range selection.Names {
		if s.output.PrintsObjects() {
			err = s.printObject(ctx, namespace, name)
		} else {
			err = s.showOne(ctx, namespace, name, i > 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *showOptions) printObject(ctx context.Context, namespace, name string) error {
	object, err := vms.GetObject(ctx, s.Options, namespace, name)
	if err != nil {
		return err
	}
	return s.output.PrintObjects(s.Out, object)
}

func (s *showOptions) showOne(ctx context.Context, namespace, name string, separate bool) error {
	vm, err := vms.GetVM(ctx, s.Options, namespace, name)
	if err != nil {
		return err
	}
	if separate {
		_, _ = fmt.Fprintln(s.Out)
	}
	d := newDescriber(s.Options)
	v := d.viewOf(vm)
	v.facts, v.steps = nil, nil
	return d.printView(s.Out, &v)
}

// tableOf returns the table of show: the properties of a VM, its place, its addresses and its usage.
func (d describer) tableOf(vm *api.VirtualMachine) []row {
	return []row{
		{"Wanted", wantedText(vm)},
		{"Since", d.sinceText(vm)},
		{"Runs on", placeText(vm)},
		{"Image", imageText(vm)},
		{"CPU", cpuText(vm)},
		{"Memory", memoryText(vm)},
		{"Disks", diskText(vm)},
		{"Addresses", strings.Join(vm.Status.Addresses, ", ")},
		{"Ports", portsText(vm)},
		{"Probe", probeText(vm)},
		{"At its end", endText(vm)},
		{"In progress", strings.Join(d.operationFacts(vm), " ")},
		{"Not applied", strings.Join(d.pendingFacts(vm), " ")},
		{"Labels", labelsText(vm.Labels)},
		{"Created", vms.AgeText(d.now, vm.CreationTimestamp.Time) + " ago, in namespace " + vm.Namespace},
	}
}

func wantedText(vm *api.VirtualMachine) string {
	if vm.DeletionTimestamp != nil {
		return "to be deleted"
	}
	return string(vm.Spec.Action)
}

func (d describer) sinceText(vm *api.VirtualMachine) string {
	if vm.Status.StartTime == nil || vm.Status.Server == nil {
		return ""
	}
	text := fmt.Sprintf("last started %s ago, at %s", vms.AgeText(d.now, vm.Status.StartTime.Time), instantText(vm.Status.StartTime.Time))
	if n := vm.Status.RestartCount; n > 0 {
		text += ", after " + servers.Count(int(n), "restart")
	}
	return text
}

// instantText formats an instant so that people can compare it with logs.
func instantText(instant time.Time) string { return instant.UTC().Format("2006-01-02 15:04:05Z") }

func placeText(vm *api.VirtualMachine) string {
	text := vms.DriverOf(vm)
	if b := vm.Status.Binding; b != nil {
		text += ", engine " + servers.ShortID(b.EngineID)
	}
	if s := vm.Status.Server; s != nil {
		text += ", as " + servers.ShortID(s.ID)
		switch s.Accelerator {
		case "kvm":
			text += ", by KVM"
		case "tcg":
			text += ", emulated"
		}
	}
	return text
}

func imageText(vm *api.VirtualMachine) string {
	text := vms.ImageOf(vm)
	if s := vm.Status.Server; s != nil && s.ImageID != "" {
		text = strings.TrimPrefix(text+", "+kit.ShortenText(s.ImageID, 26), ", ")
	}
	return text
}

func cpuText(vm *api.VirtualMachine) string {
	text := vms.SizeText(vm, api.ResourceCPU)
	if u, known := usageOf(vm); known {
		text += fmt.Sprintf(", %.2f used (%s)", u.cpus, percentText(u.cpuPercent))
	}
	return text
}

func memoryText(vm *api.VirtualMachine) string {
	text := vms.SizeText(vm, api.ResourceMemory)
	if u, known := usageOf(vm); known {
		text += fmt.Sprintf(", %s used (%s)", bytesText(u.bytes, vm.Spec.Resource[api.ResourceMemory]), percentText(u.memoryPercent))
	}
	return text
}

func diskText(vm *api.VirtualMachine) string {
	var disks []string
	if size := vms.SizeText(vm, api.ResourceRootDisk); size != vms.NoValue {
		disks = append(disks, "root "+size)
	}
	for _, v := range vm.Spec.Volumes {
		text := v.Name + " " + v.Size.String()
		if v.ReadOnly {
			text += " read-only"
		}
		disks = append(disks, text)
	}
	return strings.Join(disks, ", ")
}

// portsText returns the ports with their names, and says which of them are not open yet, and which only the image
// declares. The ports of a pod are open at the pod's address.
func portsText(vm *api.VirtualMachine) string {
	var all []string
	open := map[string]bool{}
	for _, p := range vm.Status.Ports {
		open[p.Name] = true
		all = append(all, strings.TrimSpace(p.Name+" "+vms.PortText(p.HostIP, p.HostPort, p.Port, p.Protocol)))
	}
	for _, p := range vm.Spec.Ports {
		switch {
		case open[p.Name]:
		case len(vms.PodPorts(vm)) > 0:
			all = append(all, p.Name+" "+podPortText(vm, p))
		default:
			all = append(all, p.Name+" "+vms.PortText(p.HostIP, p.HostPort, p.Port, p.Protocol)+" (not open)")
		}
	}
	if s := vm.Status.Server; s != nil && len(s.UnpublishedPorts) > 0 {
		all = append(all, strings.Join(s.UnpublishedPorts, ", ")+" (declared by the image, not in spec.ports)")
	}
	text := strings.Join(all, ", ")
	if len(vms.PodPorts(vm)) > 0 && slices.Contains(vm.Status.PendingFields, "ports") {
		text += " (changes apply at the next restart)"
	}
	return text
}

// podPortText returns a port of a pod with the pod's address.
func podPortText(vm *api.VirtualMachine, p api.Port) string {
	text := net.JoinHostPort(vm.Status.Addresses[0], strconv.Itoa(int(p.Port)))
	if p.Protocol == api.ProtocolUDP {
		text += "/udp"
	}
	return text
}

func probeText(vm *api.VirtualMachine) string {
	if p := vm.Spec.ReadinessProbe; p != nil {
		return fmt.Sprintf("port %d must answer", p.TCPSocket.Port)
	}
	return ""
}

// endText says what happens when the server ends, is stopped or is deleted.
func endText(vm *api.VirtualMachine) string {
	texts := []string{"restart " + string(vm.Spec.RestartPolicy)}
	if s := vm.Spec.ShutdownGracePeriodSeconds; s != nil {
		texts = append(texts, fmt.Sprintf("%d s to shut down", *s))
	}
	if vm.Spec.DeletionPolicy == api.DeletionRetain {
		texts = append(texts, "kept when the VM is deleted")
	} else {
		texts = append(texts, "removed when the VM is deleted")
	}
	return strings.Join(texts, ", ")
}

func labelsText(labels map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, key+"="+labels[key])
	}
	return strings.Join(all, ", ")
}
