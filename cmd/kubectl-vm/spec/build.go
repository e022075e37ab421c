// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	apply "cloudnative.tw/drover/client/applyconfiguration/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// Keys of the Secret that create makes.
const (
	UserDataKey    = "user-data"
	networkDataKey = "network-data"
)

// Flags are the flags that describe a VM.
type Flags struct {
	Image, checksum       string
	CPU, Memory, Disk     string
	ports, sshKeys        []string
	userData, networkData string
	Driver, RestartPolicy string
	labels                []string
	probe                 int32
	env                   []string
	workingDir            string
	// Words are the arguments after the dashes: arguments of the image's entrypoint, or with isCommand
	// the command in its place.
	Words     []string
	isCommand bool
}

// AddFlags adds the flags that describe a VM, but for the restart policy.
func (f *Flags) AddFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Image, "image", "", "what the VM boots; the driver's default if there is none")
	flags.StringVar(&f.checksum, "checksum", "", "digest of the image, sha256: and 64 digits")
	flags.StringVar(&f.CPU, "cpu", "1", "number of CPUs, for example 2 or 500m")
	flags.StringVar(&f.Memory, "memory", "1G", "memory, for example 4G or 512Mi")
	flags.StringVar(&f.Disk, "disk", "", "size of the root disk, for example 40G; the driver's default if there is none")
	flags.StringArrayVarP(&f.ports, "port", "p", nil, "port of the host that leads to the VM, may be repeated: "+portSyntax)
	flags.StringArrayVar(&f.sshKeys, "ssh-key", nil, "who may log in, may be repeated: auto for your own public keys, the file of a public key, or a key")
	flags.StringVar(&f.userData, "user-data", "", "file for cloud-init in the guest; - is standard input")
	flags.StringVar(&f.networkData, "network-data", "", "file with cloud-init's network configuration; - is standard input")
	flags.StringVar(&f.Driver, "driver", "", "driver that runs the VM, for example docker or qemu; the controller's first if there is none")
	flags.StringArrayVar(&f.env, "env", nil, "environment variable of a container image, may be repeated: NAME=VALUE. Everyone who may read the VM can read it")
	flags.StringVar(&f.workingDir, "working-dir", "", "folder in which a container image's command begins; by default the image says it")
	flags.BoolVar(&f.isCommand, "command", false, "what follows -- replaces the entrypoint of a container image, and is not its arguments")
	flags.Int32Var(&f.probe, "probe", 0, "port of the VM that must answer before it is ready")
	flags.StringSliceVarP(&f.labels, "labels", "l", nil, "labels, for example app=web,tier=front")
	_ = cmd.RegisterFlagCompletionFunc("driver", cobra.FixedCompletions(knownDrivers, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("ssh-key", cobra.FixedCompletions([]string{keyAuto}, cobra.ShellCompDirectiveDefault))
	for _, name := range []string{"image", "checksum", "cpu", "memory", "disk", "port", "labels", "probe", "env", "working-dir"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// AddRestartPolicy adds the flag with the restart policy.
func (f *Flags) AddRestartPolicy(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.RestartPolicy, "restart-policy", "", "Always (default), OnFailure or Never (default if there are words behind --): what happens when the server ends by itself")
	_ = cmd.RegisterFlagCompletionFunc("restart-policy", cobra.FixedCompletions(restartPolicies, cobra.ShellCompDirectiveNoFileComp))
}

// restartPolicies are the values of --restart-policy.
var restartPolicies = []string{string(api.RestartAlways), string(api.RestartOnFailure), string(api.RestartNever)}

// BuildVM returns the VM that the flags describe. secret is the name of the Secret with user-data
// and network-data.
func (f *Flags) BuildVM(ctx context.Context, namespace, name, secret string) (*apply.VirtualMachineApplyConfiguration, error) {
	size, err := f.ParseSize()
	if err != nil {
		return nil, err
	}
	spec := apply.VirtualMachineSpec().WithResource(size)
	f.setImage(spec)
	if f.Driver != "" {
		spec.WithDriver(f.Driver)
	}
	if policy := f.restartPolicyOf(); policy != "" {
		spec.WithRestartPolicy(policy)
	}
	if err := f.setCommand(spec); err != nil {
		return nil, err
	}
	if f.probe != 0 {
		spec.WithReadinessProbe(apply.Probe().WithTCPSocket(apply.TCPSocket().WithPort(f.probe)))
	}
	f.setData(spec, secret)
	keys, err := readKeys(ctx, f.sshKeys)
	if err != nil {
		return nil, err
	}
	spec.WithSSHAuthorizedKeys(keys...)
	if err := f.setPorts(spec); err != nil {
		return nil, err
	}
	labels, err := parseLabels(f.labels)
	if err != nil {
		return nil, err
	}
	vm := apply.VirtualMachine(name, namespace).WithSpec(spec)
	if len(labels) > 0 {
		vm.WithLabels(labels)
	}
	return vm, nil
}

// restartPolicyOf returns spec.restartPolicy: that of a machine for one job if the user says what it runs.
func (f *Flags) restartPolicyOf() api.RestartPolicy {
	if f.RestartPolicy == "" && len(f.Words) > 0 {
		return api.RestartNever
	}
	return api.RestartPolicy(f.RestartPolicy)
}

// setCommand sets what a container image runs.
func (f *Flags) setCommand(spec *apply.VirtualMachineSpecApplyConfiguration) error {
	if f.isCommand {
		spec.WithCommand(f.Words...)
	} else {
		spec.WithArgs(f.Words...)
	}
	if f.workingDir != "" {
		spec.WithWorkingDir(f.workingDir)
	}
	known := map[string]bool{}
	for _, text := range f.env {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" || known[name] { // without a name it may be a value that is secret
			return fmt.Errorf("--env %q: a variable is NAME=VALUE, and each is given once", name)
		}
		known[name] = true
		spec.WithEnv(apply.EnvVar().WithName(name).WithValue(value))
	}
	return nil
}

// ParseSize returns spec.resource.
func (f *Flags) ParseSize() (corev1.ResourceList, error) {
	size := corev1.ResourceList{}
	for _, one := range []struct {
		flag, value string
		name        corev1.ResourceName
	}{{"--cpu", f.CPU, api.ResourceCPU}, {"--memory", f.Memory, api.ResourceMemory}, {"--disk", f.Disk, api.ResourceRootDisk}} {
		if one.value == "" {
			continue
		}
		quantity, err := parseSize(one.flag, one.value)
		if err != nil {
			return nil, err
		}
		size[one.name] = quantity
	}
	return size, nil
}

// parseSize reads a size of a flag.
func parseSize(flag, value string) (resource.Quantity, error) {
	quantity, err := resource.ParseQuantity(value)
	switch {
	case err != nil && flag == "--cpu":
		return quantity, fmt.Errorf("%s %q: it must be a quantity, for example 2 or 500m", flag, value)
	case err != nil:
		return quantity, fmt.Errorf("%s %q: it must be a quantity, for example 4G or 512Mi", flag, value)
	case quantity.Sign() <= 0:
		return quantity, fmt.Errorf("%s %q: it must be more than 0", flag, value)
	}
	return quantity, nil
}

func (f *Flags) setImage(spec *apply.VirtualMachineSpecApplyConfiguration) {
	if f.Image == "" && f.checksum == "" {
		return
	}
	image := apply.Image().WithSource(f.Image)
	if f.checksum != "" {
		image.WithChecksum(f.checksum)
	}
	spec.WithImage(image)
}

func (f *Flags) setData(spec *apply.VirtualMachineSpecApplyConfiguration, secret string) {
	if f.userData != "" {
		spec.WithUserData(apply.DataSource().WithSecretKeyRef(apply.SecretKeyRef().WithName(secret).WithKey(UserDataKey)))
	}
	if f.networkData != "" {
		spec.WithNetworkData(apply.DataSource().WithSecretKeyRef(apply.SecretKeyRef().WithName(secret).WithKey(networkDataKey)))
	}
}

func (f *Flags) setPorts(spec *apply.VirtualMachineSpecApplyConfiguration) error {
	ports, err := AddPorts(nil, f.ports)
	if err != nil {
		return fmt.Errorf("--%w", err)
	}
	for _, p := range ports {
		next := apply.Port().WithName(p.Name).WithProtocol(p.Protocol).WithPort(p.Port)
		if p.HostPort != 0 {
			next.WithHostPort(p.HostPort)
		}
		if p.HostIP != "" {
			next.WithHostIP(p.HostIP)
		}
		spec.WithPorts(next)
	}
	return nil
}

// Check finds what contradicts itself.
func (f *Flags) Check() error {
	switch {
	case f.userData == kit.StandardInput && f.networkData == kit.StandardInput:
		return errors.New("--user-data and --network-data cannot both be standard input")
	case f.checksum != "" && f.Image == "":
		return errors.New("--checksum needs --image")
	case f.RestartPolicy != "" && !slices.Contains(restartPolicies, f.RestartPolicy):
		return fmt.Errorf("--restart-policy %q: allowed are %s", f.RestartPolicy, strings.Join(restartPolicies, ", "))
	case f.isCommand && len(f.Words) == 0:
		return errors.New("--command needs a command behind --")
	case f.probe < 0 || f.probe > 65535:
		return fmt.Errorf("--probe %d: it must be a number from 1 to 65535", f.probe)
	}
	return nil
}

// ReadSecretData reads the files of the Secret.
func (f *Flags) ReadSecretData(in io.Reader) (map[string][]byte, error) {
	data := map[string][]byte{}
	for key, path := range map[string]string{UserDataKey: f.userData, networkDataKey: f.networkData} {
		if path == "" {
			continue
		}
		content, err := kit.ReadData(in, path)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", key, err)
		}
		if len(content) == 0 {
			return nil, fmt.Errorf("--%s: %s is empty", key, path)
		}
		data[key] = content
	}
	return data, nil
}

// parseLabels reads labels of the form key=value.
func parseLabels(texts []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--labels %q: a label is KEY=VALUE", text)
		}
		labels[key] = value
	}
	return labels, nil
}

// knownDrivers are the drivers of this version. A cluster may have others.
var knownDrivers = []string{"docker", "qemu", "pod", "fake"}
