// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/internal/image/catalogue"
	"cloudnative.tw/drover/internal/image/source"
)

// sshPort is where ssh servers listen.
const sshPort = 22

// endDelay is how long ssh may take to end after Ctrl-C.
const endDelay = 5 * time.Second

// sshOptions are the flags of ssh, and those of cp that it shares.
type sshOptions struct {
	*kit.Options
	user, identity string
	port           uint16
	options        []string
	// passedOn are the flags of the command line that say which cluster is meant.
	passedOn []string
}

// NewSSHCommand returns the verb ssh.
func NewSSHCommand(o *kit.Options) *cobra.Command {
	s := &sshOptions{Options: o}
	cmd := joinGroup(o, &cobra.Command{
		Use: "ssh [USER@]NAME [flags] [-- COMMAND [ARG...]]", DisableFlagsInUseLine: true,
		Short: "Log in to a VM with the ssh of this computer",
		Long: "Log in to a VM with the ssh of this computer, through Drover or, for a VM that is\n" +
			"a pod, perhaps the API server: the VM needs no address that this computer reaches.\n" +
			"Of a machine in a pod, the port (--port) has to be one of spec.ports.\n" +
			"The user of a cloud image that the VM names as cloud://NAME is known; else ssh decides.\n" +
			"The VM's host key is accepted at the first login and then kept under the VM's UID:\n" +
			"a VM that was deleted and created again is another host.",
		Example: o.FormatExamples("ssh debian@web", "ssh debian@web -- uptime"),
		Args:    kit.RequireNameAndCommand(kit.MayHaveCommand),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.readFlags(cmd); err != nil {
				return err
			}
			return s.runSSH(cmd.Context(), args[0], args[1:])
		},
	})
	s.addFlags(cmd.Flags())
	cmd.Flags().StringVarP(&s.user, "login", "l", "", "user to log in as, like USER@NAME")
	return cmd
}

func (s *sshOptions) addFlags(f *pflag.FlagSet) {
	f.StringVarP(&s.identity, "identity", "i", "", "file of the private key to use")
	f.Uint16Var(&s.port, "port", sshPort, "port of the VM at which its ssh server listens")
	f.StringArrayVar(&s.options, "ssh-option", nil, "option for ssh, as for its -o; may be repeated")
}

func (s *sshOptions) runSSH(ctx context.Context, target string, command []string) error {
	user, name, err := splitTarget(target)
	if err != nil {
		return err
	}
	vm, err := findReachableVM(ctx, s.Options, name)
	if err != nil {
		return err
	}
	to, err := s.findDestination(vm)
	if err != nil {
		return err
	}
	if user := cmp.Or(s.user, user, to.user); user != "" {
		to.args = append(to.args, "-l", user)
	}
	return s.runProgram(ctx, "ssh", append(append(to.args, "--", to.host), command...))
}

// splitTarget splits USER@NAME.
func splitTarget(target string) (user, name string, err error) {
	name = target
	if at := strings.LastIndex(target, "@"); at >= 0 {
		if user, name = target[:at], target[at+1:]; user == "" || strings.HasPrefix(user, "-") {
			return "", "", fmt.Errorf("%q: the user before @ is empty or begins with a dash", target)
		}
	}
	if name, err = vms.ParseName(name); err != nil {
		return "", "", fmt.Errorf("%q: %w", target, err)
	}
	return user, name, nil
}

// destination is a VM that ssh or scp connects to.
type destination struct {
	args []string // options that lead to the VM
	host string
	user string // who logs in unless the command line says it; empty if that is not known
}

// findReachableVM returns a VM that accepts connections.
func findReachableVM(ctx context.Context, o *kit.Options, name string) (*api.VirtualMachine, error) {
	vm, err := vms.FindVM(ctx, o, name)
	if err != nil {
		return nil, err
	}
	return vm, vms.CheckPower(o.Program, vm)
}

// findDestination returns the destination that a VM is. The key of the host is stored under the VM's UID.
func (s *sshOptions) findDestination(vm *api.VirtualMachine) (destination destination, err error) {
	known, err := knownHostsFile()
	if err != nil {
		return destination, err
	}
	self, err := findSelf(s.Self)
	if err != nil {
		return destination, err
	}
	for _, option := range append(s.hostOptions(self, vm.Name, vm.UID, known), s.options...) {
		destination.args = append(destination.args, "-o", option)
	}
	if s.identity != "" {
		destination.args = append(destination.args, "-i", s.identity)
	}
	destination.host, destination.user = vm.Name+"."+vm.Namespace+".vm", loginUser(vm)
	return destination, nil
}

// loginUser returns the user of the cloud image that a VM's spec names, if the catalogue of this program has
// the name: cloud-init gives that user the VM's keys. It returns "" for every other image.
func loginUser(vm *api.VirtualMachine) string {
	if vm.Spec.Image == nil {
		return ""
	}
	from := source.Parse(vm.Spec.Image.Source)
	if from.Kind != source.Catalogue {
		return ""
	}
	return catalogue.Shipped().User(from.Name)
}

// findSelf returns the command that starts this program again, which is the file that runs if self names none.
func findSelf(self []string) ([]string, error) {
	if self != nil {
		return self, nil
	}
	path, err := os.Executable()
	return []string{path}, err
}

func (s *sshOptions) hostOptions(self []string, name string, uid types.UID, known string) []string {
	proxy := slices.Concat(self, []string{"port-forward", "--stdio"}, s.passedOn, []string{"--", name, strconv.Itoa(int(s.port))})
	return []string{
		"ProxyCommand=" + quoteCommand(proxy),
		"HostKeyAlias=" + hostKeyAlias(uid),
		"UserKnownHostsFile=" + quoteWord(known),
		"StrictHostKeyChecking=accept-new",
		"CheckHostIP=no",
		"ControlPath=none", // its connections are found by the name, which VMs of other clusters may have
	}
}

// hostKeyAlias is the name under which the host key of a VM is stored.
func hostKeyAlias(uid types.UID) string { return "drover-" + string(uid) }

// knownHostsFile returns the file of the VMs' host keys, in a folder that exists.
func knownHostsFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the folder for the VMs' host keys: %w", err)
	}
	dir = filepath.Join(dir, "drover")
	return filepath.Join(dir, "known_hosts"), os.MkdirAll(dir, 0o700)
}

// quoteCommand returns a command for the shell that runs a ProxyCommand, in which ssh
// replaces what follows a percent sign.
func quoteCommand(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = printable.ShellWord(word)
	}
	return strings.ReplaceAll(strings.Join(quoted, " "), "%", "%%")
}

// quoteWord quotes a path in ssh's configuration, where a space would end it.
func quoteWord(path string) string {
	return "\"" + strings.ReplaceAll(path, "%", "%%") + "\""
}

// readFlags stores the flags of the command line that say which cluster is meant. Others of
// this computer can read ssh's command line, so no secret may be in it.
func (s *sshOptions) readFlags(cmd *cobra.Command) error {
	for _, secret := range []string{"token", "password"} {
		if f := cmd.Flags().Lookup(secret); f != nil && f.Changed {
			return fmt.Errorf("--%s cannot be used here, since others could read it: put it into a kubeconfig", secret)
		}
	}
	s.passedOn = nil
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if f.Changed {
				s.passedOn = append(s.passedOn, "--"+f.Name+"="+value)
			}
		}
	})
	return nil
}

// runProgram runs ssh or scp with the streams of this program, and passes its exit code on.
func (s *sshOptions) runProgram(ctx context.Context, program string, args []string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("%s is not installed on this computer (package openssh-client): %w", program, err)
	}
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // ssh or scp, with the arguments of its user
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.ErrOut
	if file := printable.File(s.Out); file != nil { // it may be a terminal, which the program has to see
		cmd.Stdout = file
	}
	// ssh gets the time to restore the terminal.
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, endDelay
	err = cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return &kit.ExitError{Code: cmp.Or(max(exit.ExitCode(), 0), 1)}
	}
	return err
}
