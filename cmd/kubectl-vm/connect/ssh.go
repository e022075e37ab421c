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

// sshPort is the default port of ssh servers.
const sshPort = 22

// endDelay is how long ssh may take to end after Ctrl-C.
const endDelay = 5 * time.Second

// sshOptions are the flags that the verbs ssh and cp share.
type sshOptions struct {
	*kit.Options
	user, identity string
	port           uint16
	options        []string
	// clusterFlags are the kubectl flags of the command line, which ssh's proxy command repeats.
	clusterFlags []string
}

// NewSSHCommand returns the command ssh.
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
		Args:    kit.RequireName(kit.WithOptionalCommand),
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
	login, err := s.findDestination(vm)
	if err != nil {
		return err
	}
	if user := cmp.Or(s.user, user, login.user); user != "" {
		login.args = append(login.args, "-l", user)
	}
	return s.runProgram(ctx, "ssh", append(append(login.args, "--", login.host), command...))
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

// destination is a VM to which ssh or scp connects.
type destination struct {
	args []string // the options with which ssh reaches the VM
	host string
	user string // the default user, or "" if it is unknown
}

// findReachableVM returns a VM, and an error if the VM is stopped or paused.
func findReachableVM(ctx context.Context, o *kit.Options, name string) (*api.VirtualMachine, error) {
	vm, err := vms.FindVM(ctx, o, name)
	if err != nil {
		return nil, err
	}
	return vm, vms.CheckPower(o.Program, vm)
}

// findDestination returns a VM as a destination for ssh. ssh stores the VM's host key under the VM's UID.
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

// loginUser returns the user to whom cloud-init gives the VM's keys, if the VM's image is a cloud image in the
// catalogue of this program. It returns "" for every other image.
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

// findSelf returns the command that starts this program again: self, or the running file if self is nil.
func findSelf(self []string) ([]string, error) {
	if self != nil {
		return self, nil
	}
	path, err := os.Executable()
	return []string{path}, err
}

func (s *sshOptions) hostOptions(self []string, name string, uid types.UID, known string) []string {
	proxy := slices.Concat(self, []string{"port-forward", "--stdio"}, s.clusterFlags, []string{"--", name, strconv.Itoa(int(s.port))})
	return []string{
		"ProxyCommand=" + quoteCommand(proxy),
		"HostKeyAlias=" + hostKeyAlias(uid),
		"UserKnownHostsFile=" + quoteWord(known),
		"StrictHostKeyChecking=accept-new",
		"CheckHostIP=no",
		"ControlPath=none", // shared connections are found by name, and a VM of another cluster may have the same name
	}
}

// hostKeyAlias returns the name under which ssh stores the host key of a VM.
func hostKeyAlias(uid types.UID) string { return "drover-" + string(uid) }

// knownHostsFile returns the path of the file with the VMs' host keys. It creates the folder of the file.
func knownHostsFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the folder for the VMs' host keys: %w", err)
	}
	dir = filepath.Join(dir, "drover")
	return filepath.Join(dir, "known_hosts"), os.MkdirAll(dir, 0o700)
}

// quoteCommand quotes a command for ProxyCommand, which a shell runs. It doubles percent signs, since ssh
// expands them.
func quoteCommand(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = printable.ShellWord(word)
	}
	return strings.ReplaceAll(strings.Join(quoted, " "), "%", "%%")
}

// quoteWord quotes a path for ssh's configuration, where a space would end the path.
func quoteWord(path string) string {
	return "\"" + strings.ReplaceAll(path, "%", "%%") + "\""
}

// readFlags stores the kubectl flags of the command line for ssh's proxy command. It refuses flags that
// contain a secret, since other users of this computer can read ssh's command line.
func (s *sshOptions) readFlags(cmd *cobra.Command) error {
	for _, secret := range []string{"token", "password"} {
		if f := cmd.Flags().Lookup(secret); f != nil && f.Changed {
			return fmt.Errorf("--%s cannot be used here, since others could read it: put it into a kubeconfig", secret)
		}
	}
	s.clusterFlags = nil
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if f.Changed {
				s.clusterFlags = append(s.clusterFlags, "--"+f.Name+"="+value)
			}
		}
	})
	return nil
}

// runProgram runs ssh or scp with the streams of this program, and returns its exit code as an error.
func (s *sshOptions) runProgram(ctx context.Context, program string, args []string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("%s is not installed on this computer (package openssh-client): %w", program, err)
	}
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // ssh or scp, with the arguments of its user
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.ErrOut
	if file := printable.File(s.Out); file != nil { // so that the program sees whether it is a terminal
		cmd.Stdout = file
	}
	// SIGTERM gives ssh the chance to restore the terminal.
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
