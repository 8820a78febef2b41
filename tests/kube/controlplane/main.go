// One file that is a whole Kubernetes control plane: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, chosen by the name it is called
// by or by its first argument. It adds nothing to them: what the tests see is
// what these programs do. There is no kubelet in it (see src/kubelet.rs).
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// commands gives each part's root command; etcd has no cobra root and is told apart below.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	args := os.Args
	name := filepath.Base(args[0])
	if _, known := commands[name]; !known && name != "etcd" && len(args) > 1 {
		args = args[1:]
		name = args[0]
	}
	if name == "etcd" {
		etcdmain.Main(args)
		return
	}
	command, known := commands[name]
	if !known {
		fmt.Fprintln(os.Stderr, "usage: gpuheal-controlplane etcd|kube-apiserver|kube-controller-manager|kube-scheduler [flags]")
		os.Exit(2)
	}
	root := command()
	root.SetArgs(args[1:])
	os.Exit(cli.Run(root))
}
