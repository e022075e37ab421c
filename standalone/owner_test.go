// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/test/framework"
)

// commandEnv has the command line that the test program runs instead of its tests.
const commandEnv = "DROVER_TEST_COMMAND"

// TestRunCommand runs a command in the process that TestOthersKubeconfig starts: a process
// that has become another user stays so.
func TestRunCommand(t *testing.T) {
	line := os.Getenv(commandEnv)
	if line == "" {
		t.Skip("TestOthersKubeconfig runs this")
	}
	defer func() { fmt.Println("user:", os.Geteuid()) }()
	if args, is := strings.CutPrefix(line, "kubectl "); is {
		os.Args = append([]string{"drover", "kubectl"}, strings.Fields(args)...)
		useDataDirKubeconfig(os.Args[2:])
		fmt.Println("user:", os.Geteuid()) // runKubectl may end the process
		runKubectl(os.Args[2:])
		return
	}
	root := newRootCommand()
	root.AddCommand(newVMCommand(newVMOptions()))
	root.SetArgs(strings.Fields(line))
	fmt.Println("result:", root.ExecuteContext(t.Context()))
}

// TestOthersKubeconfig checks that root runs no program that the kubeconfig of another user's
// data dir names, and purges such a data dir as that user.
func TestOthersKubeconfig(t *testing.T) {
	base, user := framework.PublicDir(t), framework.PlainUser(t)
	dir, ran, program := datadir.Layout(filepath.Join(base, "data")), filepath.Join(base, "ran"), filepath.Join(base, "login")
	opened, err := datadir.Open(string(dir))
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true}}],
"users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": %q, "interactiveMode": "Never"}}}]}`, program)
	if err := errors.Join(opened.Close(), os.WriteFile(dir.Kubeconfig(), []byte(config), 0o600),
		os.WriteFile(program, []byte("#!/bin/sh\nid -u >>"+ran+"\nexit 1\n"), 0o755), os.Chmod(program, 0o755),
		os.WriteFile(ran, nil, 0o666), os.Chmod(ran, 0o666), framework.ChownAll(string(dir), user)); err != nil {
		t.Fatal(err)
	}
	plain := strconv.Itoa(int(user.Uid))
	for _, line := range []string{"kubectl get --raw=/version", "vm list", "purge --yes --data-dir=" + string(dir)} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestRunCommand$")
		cmd.Env = append(os.Environ(), commandEnv+"="+line, "DROVER_DATA_DIR="+string(dir), "KUBECONFIG=")
		cmd.WaitDelay = time.Minute
		out, _ := cmd.CombinedOutput() // there is no server
		users, err := os.ReadFile(ran)
		if err := errors.Join(err, os.Truncate(ran, 0)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(out), "user: "+plain) {
			t.Errorf("%s did not become user %s:\n%s", line, plain, out)
		}
		for id := range strings.FieldsSeq(string(users)) {
			if id != plain {
				t.Errorf("%s ran the program as user %s", line, id)
			}
		}
		if len(users) == 0 && !strings.HasPrefix(line, "purge") {
			t.Errorf("%s did not run the program:\n%s", line, out)
		}
	}
}
