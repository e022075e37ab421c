// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	apply "cloudnative.tw/drover/client/applyconfiguration/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// Keys of the Secret of a VM.
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
	env, envFiles         []string
	workingDir            string
	user, init            string
	sysctls               []string
	// Args are the arguments after --. They are arguments of the image's entrypoint, or, with isCommand, the
	// command that replaces the entrypoint.
	Args      []string
	isCommand bool
	// Stdin and TTY give the command an input and a terminal.
	Stdin, TTY bool
}

// AddFlags adds the flags that describe a VM, except for --restart-policy.
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
	flags.StringArrayVarP(&f.env, "env", "e", nil, "environment variable of a container image, may be repeated: NAME=VALUE. Everyone who may read the VM can read it")
	flags.StringArrayVar(&f.envFiles, "env-file", nil, "file of variables for --env, may be repeated: NAME=VALUE in each line; NAME alone is a variable of this shell, and # begins a comment")
	flags.StringVar(&f.workingDir, "working-dir", "", "folder in which a container image's command begins; by default the image says it")
	flags.StringVar(&f.user, "user", "", "user that runs a container image's command, for example 1000:1000; by default the image says it")
	flags.StringVar(&f.init, "init", "", "process 1 of a container image: Image (its command) or Drover")
	flags.StringArrayVar(&f.sysctls, "sysctl", nil, "parameter of a container image's kernel, may be repeated: NAME=VALUE")
	flags.BoolVarP(&f.Stdin, "stdin", "i", false, "keep the standard input of a container image's command open; run sends its standard input, and console what is typed")
	flags.BoolVarP(&f.TTY, "tty", "t", false, "give a container image's command a terminal")
	flags.BoolVar(&f.isCommand, "command", false, "the arguments after -- replace the entrypoint of a container image instead of being passed to it")
	flags.Int32Var(&f.probe, "probe", 0, "port of the VM that must answer before it is ready")
	flags.StringSliceVarP(&f.labels, "labels", "l", nil, "labels, for example app=web,tier=front")
	_ = cmd.RegisterFlagCompletionFunc("driver", cobra.FixedCompletions(knownDrivers, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("ssh-key", cobra.FixedCompletions([]string{keyAuto}, cobra.ShellCompDirectiveDefault))
	_ = cmd.RegisterFlagCompletionFunc("init", cobra.FixedCompletions([]string{string(api.InitImage), string(api.InitDrover)}, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"image", "checksum", "cpu", "memory", "disk", "port", "labels", "probe", "env", "working-dir", "user", "sysctl"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// AddRestartPolicy adds the flag --restart-policy.
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

// restartPolicyOf returns spec.restartPolicy. By default it is Never if the user says what the VM runs, since such a VM
// is for one job.
func (f *Flags) restartPolicyOf() api.RestartPolicy {
	if f.RestartPolicy == "" && len(f.Args) > 0 {
		return api.RestartNever
	}
	return api.RestartPolicy(f.RestartPolicy)
}

// setCommand sets the command of a container image and its surroundings.
func (f *Flags) setCommand(spec *apply.VirtualMachineSpecApplyConfiguration) error {
	if f.isCommand {
		spec.WithCommand(f.Args...)
	} else {
		spec.WithArgs(f.Args...)
	}
	if f.workingDir != "" {
		spec.WithWorkingDir(f.workingDir)
	}
	if f.user != "" {
		spec.WithUser(f.user)
	}
	if f.init != "" {
		spec.WithInit(api.Init(f.init))
	}
	if f.Stdin {
		spec.WithStdin(true)
	}
	if f.TTY {
		spec.WithTTY(true)
	}
	return errors.Join(f.setSysctls(spec), f.setEnv(spec))
}

func (f *Flags) setSysctls(spec *apply.VirtualMachineSpecApplyConfiguration) error {
	for _, text := range f.sysctls {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return fmt.Errorf("--sysctl %q: a parameter must be NAME=VALUE", text)
		}
		spec.WithSysctls(apply.Sysctl().WithName(name).WithValue(value))
	}
	return nil
}

// setEnv sets the variables of --env-file and --env. One of --env replaces those of files with the same name.
func (f *Flags) setEnv(spec *apply.VirtualMachineSpecApplyConfiguration) error {
	values := map[string]string{}
	var names []string
	add := func(name, value string) {
		if _, isKnown := values[name]; !isKnown {
			names = append(names, name)
		}
		values[name] = value
	}
	for _, path := range f.envFiles {
		if err := readEnvFile(path, add); err != nil {
			return fmt.Errorf("--env-file: %w", err)
		}
	}
	given := map[string]bool{}
	for _, text := range f.env {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" || given[name] { // the error must not contain the value, which may be secret
			return fmt.Errorf("--env %q: a variable must be NAME=VALUE, and be given only once", name)
		}
		given[name] = true
		add(name, value)
	}
	for _, name := range names {
		spec.WithEnv(apply.EnvVar().WithName(name).WithValue(values[name]))
	}
	return nil
}

// readEnvFile calls add for each variable of a file. Like docker run, it takes values as they are, quotes included.
func readEnvFile(path string, add func(name, value string)) error {
	content, err := os.ReadFile(path) //nolint:gosec // the user names it
	if err != nil {
		return err
	}
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		line = strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, hasValue := strings.Cut(line, "=")
		if name == "" || strings.ContainsAny(name, " \t") {
			return fmt.Errorf("line %d of %s: a line is NAME=VALUE or NAME, without spaces in NAME", number, path)
		}
		if !hasValue {
			if value, hasValue = os.LookupEnv(name); !hasValue {
				continue
			}
		}
		add(name, value)
	}
	return nil
}

// ParseSize returns spec.resource.
func (f *Flags) ParseSize() (corev1.ResourceList, error) {
	size := corev1.ResourceList{}
	for _, entry := range []struct {
		flag, value string
		name        corev1.ResourceName
	}{{"--cpu", f.CPU, api.ResourceCPU}, {"--memory", f.Memory, api.ResourceMemory}, {"--disk", f.Disk, api.ResourceRootDisk}} {
		if entry.value == "" {
			continue
		}
		quantity, err := parseSize(entry.flag, entry.value)
		if err != nil {
			return nil, err
		}
		size[entry.name] = quantity
	}
	return size, nil
}

// parseSize parses the value of a flag for a size.
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

// Check returns an error for values that are not allowed, and for flags that contradict each other.
func (f *Flags) Check() error {
	switch {
	case f.userData == kit.StandardInput && f.networkData == kit.StandardInput:
		return errors.New("--user-data and --network-data cannot both be standard input")
	case f.checksum != "" && f.Image == "":
		return errors.New("--checksum needs --image")
	case f.RestartPolicy != "" && !slices.Contains(restartPolicies, f.RestartPolicy):
		return fmt.Errorf("--restart-policy %q: allowed are %s", f.RestartPolicy, strings.Join(restartPolicies, ", "))
	case f.isCommand && len(f.Args) == 0:
		return errors.New("--command needs a command after --")
	case f.probe < 0 || f.probe > 65535:
		return fmt.Errorf("--probe %d: it must be a number from 1 to 65535", f.probe)
	}
	return nil
}

// ReadSecretData reads the files that the Secret of the VM contains.
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

// parseLabels parses labels of the form KEY=VALUE.
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

// knownDrivers are the drivers of this version of Drover, for completion. A cluster may have other drivers.
var knownDrivers = []string{"docker", "qemu", "pod", "fake"}
