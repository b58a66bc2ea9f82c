#!/usr/bin/env bash
# The first process of the node's namespaces (network, mounts, processes): the kernel ends all of it with this one.
# Usage: start.sh RUN_FOLDER PROGRAMS DEBIAN_FOLDER CONTROL_GROUP
set -euo pipefail
run=$1 certificates=$1/certificates
export PATH=$2:$3/usr/bin:$3/usr/sbin:$PATH:/usr/sbin:/sbin
ADDRESS=10.77.0.1

mount --make-rshared /
# Private places for the folders that are fixed in the components.
mount -t tmpfs tmpfs /run
mkdir -p /run/lock "$run/lib/kubelet" "$run/log"
mount --bind "$run/lib" /var/lib
mount --bind "$run/log" /var/log
mount --bind /var/lib/kubelet /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
# kubelet sets these for the whole machine: it finds them set, and the machine keeps its own.
mkdir "$run/sysctl"
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=$run/sysctl/$(basename "${setting%=*}")
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done

ip link set lo up
ip link add node0 type veth peer name node1
ip link set node1 up
ip addr add $ADDRESS/24 dev node0
ip link set node0 up
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward
echo "nameserver $ADDRESS" >"$run/resolv.conf"
# Commands in the node's namespaces ask as its pods do, by the Service.
echo "nameserver 10.79.0.10" >"$run/resolver.conf"
mount --bind "$run/resolver.conf" /etc/resolv.conf

for tasks in /sys/fs/cgroup/*/"$4"/tasks; do echo $$ >"$tasks"; done

start() { # program, arguments
    local log=$run/$1.log
    # It ends itself where it asks before the API server has made its roles.
    (while :; do "$@" >>"$log" 2>&1 || true; sleep 0.5; done) &
}

api_is_ready() {
    curl -sf -m 2 --cacert "$certificates/ca.crt" --cert "$certificates/admin.crt" --key "$certificates/admin.key" \
        https://$ADDRESS:6443/readyz >/dev/null
}

start containerd --config "$run/containerd.toml"
# In memory: a busy disk would slow each write of the API server.
start etcd --data-dir /run/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --quota-backend-bytes 2147483648
# etcd 3.4 has not the statistics that the feature asks for.
start kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address=$ADDRESS --bind-address=0.0.0.0 \
    --secure-port=6443 --service-cluster-ip-range=10.79.0.0/16 --authorization-mode=Node,RBAC \
    --client-ca-file="$certificates/ca.crt" --tls-cert-file="$certificates/server.crt" \
    --tls-private-key-file="$certificates/server.key" --kubelet-client-certificate="$certificates/apiserver.crt" \
    --kubelet-client-key="$certificates/apiserver.key" --kubelet-certificate-authority="$certificates/ca.crt" \
    --kubelet-preferred-address-types=InternalIP --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$certificates/sa.pub" --service-account-signing-key-file="$certificates/sa.key" \
    --proxy-client-cert-file="$certificates/front-proxy.crt" --proxy-client-key-file="$certificates/front-proxy.key" \
    --requestheader-client-ca-file="$certificates/ca.crt" --requestheader-allowed-names=front-proxy \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- --enable-aggregator-routing=true \
    --allow-privileged=true --enable-admission-plugins=NodeRestriction --feature-gates=SizeBasedListCostEstimate=false
until api_is_ready; do sleep 0.2; done
manager=$certificates/kube-controller-manager.kubeconfig
start kube-controller-manager --kubeconfig="$manager" --authentication-kubeconfig="$manager" \
    --authorization-kubeconfig="$manager" --service-account-private-key-file="$certificates/sa.key" \
    --root-ca-file="$certificates/ca.crt" --use-service-account-credentials=true --cluster-cidr=10.78.0.0/16 \
    --allocate-node-cidrs=false --leader-elect=false --bind-address=127.0.0.1
start kube-scheduler --kubeconfig="$certificates/kube-scheduler.kubeconfig" --leader-elect=false --bind-address=127.0.0.1
start kubelet --config="$run/kubelet.yaml" --kubeconfig="$certificates/kubelet.kubeconfig" --hostname-override=node \
    --node-ip=$ADDRESS
start kube-proxy --config="$run/proxy.yaml" --hostname-override=node
start coredns -conf "$run/Corefile"
while :; do wait -n || true; done
