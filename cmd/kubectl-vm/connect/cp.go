// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/remotecommand"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/internal/guest/files"
	"cloudnative.tw/drover/internal/image/source"
)

// copyOptions are the flags of cp.
type copyOptions struct {
	sshOptions
	recursive bool
}

// NewCopyCommand returns the command cp.
func NewCopyCommand(o *kit.Options) *cobra.Command {
	c := &copyOptions{sshOptions: sshOptions{Options: o}}
	cmd := joinGroup(o, &cobra.Command{
		Use:   "cp [USER@]NAME:PATH LOCAL | LOCAL... [USER@]NAME:PATH",
		Short: "Copy files to or from a VM",
		Long: "Copy files to or from a VM. A machine of a container image (driver qemu) needs nothing for it:\n" +
			"Drover's program in it reads and writes, as root, and new files belong to the image's user.\n" +
			"A file that exists keeps its owner and mode, and its content until the new one is whole.\n" +
			"It copies folders without -r too. From a VM, symbolic links that lead out of the copied folder are left\n" +
			"out, and named at the end. Every other VM, and each as USER@NAME or with a flag for ssh,\n" +
			"is reached with the scp of this computer.",
		Example: o.FormatExamples("cp page.html web:/srv/", "cp -r debian@deb:/var/log ./log"),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("give at least two paths: what to copy, and where to copy it")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.readFlags(cmd); err != nil {
				return err
			}
			return c.copyPaths(cmd.Context(), args)
		},
	})
	c.addFlags(cmd.Flags())
	cmd.Flags().BoolVarP(&c.recursive, "recursive", "r", false, "copy folders with their content")
	return cmd
}

func (c *copyOptions) copyPaths(ctx context.Context, paths []string) error {
	var remotes []int
	ends := make([]copyEnd, len(paths))
	for n, text := range paths {
		var err error
		if ends[n], err = parseCopyEnd(text); err != nil {
			return err
		}
		if ends[n].name != "" {
			remotes = append(remotes, n)
		}
	}
	if len(remotes) != 1 {
		return errors.New("exactly one of the paths has to be in a VM, as in NAME:PATH: the others have to be on this computer")
	}
	remote := ends[remotes[0]]
	vm, err := findReachableVM(ctx, c.Options, remote.name)
	switch {
	case err != nil:
		return err
	case c.usesSSH(remote, vm):
		return c.copyBySSH(ctx, vm, ends)
	case ends[0] == remote && len(ends) == 2:
		return c.receiveFile(ctx, remote, ends[1].path)
	case ends[len(ends)-1] != remote:
		return errors.New("to copy from a VM, give one path in the VM and then one on this computer: NAME:PATH LOCAL")
	}
	if len(ends) > 2 {
		remote.path += "/" // the destination of several files has to be a folder
	}
	for _, end := range ends[:len(ends)-1] {
		if err := c.sendFile(ctx, end.path, remote); err != nil {
			return err
		}
	}
	return nil
}

// copyBySSH runs scp.
func (c *copyOptions) copyBySSH(ctx context.Context, vm *api.VirtualMachine, ends []copyEnd) error {
	login, err := c.findDestination(vm)
	if err != nil {
		return err
	}
	if c.recursive {
		login.args = append(login.args, "-r")
	}
	args := append(slices.Clone(login.args), "--")
	for _, end := range ends {
		args = append(args, end.scpArgument(login))
	}
	return c.runProgram(ctx, "scp", args)
}

// usesSSH reports whether to copy by scp, because the command line says so or Drover's program does not run in the VM.
func (c *copyOptions) usesSSH(end copyEnd, vm *api.VirtualMachine) bool {
	if end.user != "" || c.identity != "" || c.port != sshPort || len(c.options) > 0 || vms.DriverOf(vm) != vms.DriverQEMU {
		return true
	}
	if vm.Spec.Image == nil {
		return false // Drover's default image is unknown here, so try without ssh
	}
	from := source.Parse(vm.Spec.Image.Source)
	return from.Kind != source.None && !from.IsContainer()
}

// sendFile copies a file or folder of this computer to a machine.
func (c *copyOptions) sendFile(ctx context.Context, local string, remote copyEnd) error {
	local, err := filepath.Abs(local) // the copy needs a name, which "." is not
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, out := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := files.Pack(out, local)
		if _, isLeftOut := errors.AsType[*files.LeftOutError](err); err != nil && !isLeftOut {
			cancel(err) // and do not close out: an end of the stream would make it look complete
		} else {
			_ = out.Close()
		}
		packed <- err
	}()
	err = c.runInGuest(ctx, remote, files.WriteCommand, stream, nil)
	cause := context.Cause(ctx)
	_ = stream.Close() // ends Pack if the guest has not read everything
	if err := cmp.Or(cause, err); err != nil {
		return err
	}
	return <-packed
}

// receiveFile copies a file or folder of a machine to this computer.
func (c *copyOptions) receiveFile(ctx context.Context, remote copyEnd, local string) error {
	name := path.Base(path.Clean("/" + remote.path))
	if name == "/" {
		return fmt.Errorf("%q: name a file or folder of the VM", remote.name+":"+remote.path)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, in := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := c.unpackStream(stream, local, name)
		if err != nil {
			cancel(err)
		}
		_ = stream.CloseWithError(err)
		unpacked <- err
	}()
	err := c.runInGuest(ctx, remote, files.ReadCommand, nil, in)
	_ = in.CloseWithError(err)
	return cmp.Or(<-unpacked, err)
}

// unpackStream creates the files of a stream on this computer.
func (c *copyOptions) unpackStream(stream io.Reader, local, name string) error {
	destination, err := files.DestinationOf(local, name)
	if err != nil {
		return err
	}
	destination.Overwritten = &files.Overwritten{}
	err = files.Unpack(stream, destination)
	if note := destination.Overwritten.Describe(); note != "" {
		_, _ = fmt.Fprintln(c.ErrOut, note)
	}
	return err
}

// runInGuest runs a command of Drover's program in a machine.
func (c *copyOptions) runInGuest(ctx context.Context, end copyEnd, command string, in io.Reader, out io.Writer) error {
	target, err := vms.FindTarget(ctx, c.Options, end.name, streamsapi.Exec)
	if err != nil {
		return err
	}
	query := url.Values{"command": {command, end.path}, "stdin": {strconv.FormatBool(in != nil)}, "stdout": {strconv.FormatBool(out != nil)}, "stderr": {"true"}}
	err = target.WrapError(ctx, target.RunCommand(ctx, query, guestStreams(in, out, c.ErrOut)))
	if exit := (*kit.ExitError)(nil); err == nil || (errors.As(err, &exit) && exit.Err == nil) { // the command has printed its error
		return err
	}
	return fmt.Errorf("%w; to copy by ssh: USER@%s:PATH", err, end.name)
}

// guestStreams returns the streams of a command in the guest. The standard error is without control characters, for a terminal.
func guestStreams(in io.Reader, out, errOut io.Writer) remotecommand.StreamOptions {
	return remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: printable.NewWriter(errOut)}
}

// copyEnd is a path in the VM name, or on this computer if name is empty.
type copyEnd struct{ user, name, path string }

// parseCopyEnd parses a path as scp does: the text before a colon is a host, unless it contains a slash.
func parseCopyEnd(text string) (copyEnd, error) {
	host, path, hasColon := strings.Cut(text, ":")
	if !hasColon || strings.Contains(host, "/") {
		return copyEnd{path: text}, nil
	}
	user, name, err := splitTarget(host)
	return copyEnd{user: user, name: name, path: path}, err
}

func (e copyEnd) scpArgument(login destination) string {
	if e.name == "" {
		return e.path
	}
	host := login.host
	if user := cmp.Or(e.user, login.user); user != "" {
		host = user + "@" + host
	}
	return host + ":" + e.path
}
